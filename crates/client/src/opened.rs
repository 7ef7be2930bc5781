//! [`Opened`]: a file as an open answered it.
use crate::attributes::Attributes;
use crate::malformed::Malformed;
use cairn_wire::common::{Extent, StripeSet};
use cairn_wire::meta::OpenResponse;

/// Attributes, and the first extents as far as they came along.
#[derive(Clone, PartialEq, Debug)]
pub struct Opened {
    pub attributes: Attributes,
    pub(crate) extents: Vec<Extent>,
    pub(crate) sets: Vec<StripeSet>,
    /// These are all extents.
    pub(crate) end: bool,
}

impl Opened {
    /// Of a file of which another operation answered the attributes: one without bytes has no extents.
    pub fn of(attributes: Attributes) -> Self {
        Self { end: attributes.stored_bytes == 0, ..Self::without_extents(attributes) }
    }
    /// All extents, if they came along.
    pub fn all_extents(&self) -> Option<Vec<crate::extent::Extent>> {
        self.end.then(|| self.extents.iter().map(crate::extent::Extent::of_wire).collect())
    }
    pub(crate) fn without_extents(attributes: Attributes) -> Self {
        Self { attributes, extents: Vec::new(), sets: Vec::new(), end: false }
    }
    pub(crate) fn of_wire(found: OpenResponse) -> Result<Self, Malformed> {
        let OpenResponse { attributes, extents, sets, end, index: _ } = found;
        Ok(Self { attributes: Attributes::of_answer(attributes)?, extents, sets, end })
    }
}
