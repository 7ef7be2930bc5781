//! Layout of a file: scheme, striping and a later scheme, such as `r3`, `r2x128/64k`, `rs-6-3/64k`, `r3>rs-10-4`.
//!
//! Inherited from the directory and fixed at creation. Packed into a u64 on the wire and on disk:
//! bits 0–7 scheme code, 8–23 stripe width (0 = not striped over chunks), 24–31 log2 of the stripe unit (0 = none),
//! 32–39 code of the scheme that it is encoded to later (0 = none), 40–63 zero.
use crate::scheme::Scheme;
use crate::stripe::Stripe;
use crate::units::ByteCount;
use std::fmt;
use std::str::FromStr;

/// Smallest stripe unit.
pub const STRIPE_UNIT_MIN: u64 = 4 << 10;
/// Largest stripe unit.
pub const STRIPE_UNIT_MAX: u64 = 1 << 20;
/// Stripe unit where none is given.
pub const STRIPE_UNIT_DEFAULT: u64 = 64 << 10;
/// Most chunks that a replicated stripe set may have.
pub const STRIPE_WIDTH_MAX: u16 = 512;

/// A parsed layout. Fields are private so that every value is a valid one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Layout {
    scheme: Scheme,
    width: u16,
    unit_log2: u8,
    staged: Option<Scheme>,
}

/// A text that is no layout; prints what is allowed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{text:?} is no layout ({why}); examples: r3 (three copies), r2x128/64k (two copies, striped over 128 chunks), \
     rs-6-3/64k (Reed–Solomon)"
)]
pub struct LayoutError {
    text: String,
    why: String,
}

impl Layout {
    /// Plain copies.
    pub const fn replicated(copies: u8) -> Layout {
        assert!(copies >= 1 && copies <= 5);
        Layout { scheme: Scheme::Replicated(copies), width: 0, unit_log2: 0, staged: None }
    }
    /// Scheme of the chunks that are written first.
    pub fn scheme(self) -> Scheme {
        self.scheme
    }
    /// Chunks in a stripe set, if the file is striped over replicated chunks.
    pub fn stripe_width(self) -> Option<u16> {
        (self.width > 0).then_some(self.width)
    }
    /// Bytes of a stripe unit, if striped.
    pub fn stripe_unit(self) -> Option<u64> {
        (self.unit_log2 > 0).then(|| 1 << self.unit_log2)
    }
    /// How whole rows lie on columns: the k data shards, or the chunks of a stripe set.
    pub fn stripe(self) -> Option<Stripe> {
        let columns = match self.scheme {
            Scheme::Erasure { k, .. } => u16::from(k),
            Scheme::Replicated(_) => self.width,
        };
        Stripe::new(columns, self.stripe_unit()?)
    }
    /// Scheme that the file is encoded to later.
    pub fn staged(self) -> Option<Scheme> {
        self.staged
    }
    /// True for `r1` … `r5` without striping or staging.
    pub fn is_plain_replicated(self) -> bool {
        self.scheme.is_replicated() && self.width == 0 && self.staged.is_none()
    }
    pub fn to_bits(self) -> u64 {
        u64::from(self.scheme.code())
            | u64::from(self.width) << 8
            | u64::from(self.unit_log2) << 24
            | u64::from(self.staged.map_or(0, Scheme::code)) << 32
    }
    /// Decodes what `to_bits` gave; `None` for anything else.
    pub fn from_bits(bits: u64) -> Option<Layout> {
        if bits >> 40 != 0 {
            return None;
        }
        let scheme = Scheme::from_code(bits as u8)?;
        let staged = match (bits >> 32) as u8 {
            0 => None,
            code => Some(Scheme::from_code(code)?),
        };
        let layout = Layout { scheme, width: (bits >> 8) as u16, unit_log2: (bits >> 24) as u8, staged };
        layout.check().ok().map(|()| layout)
    }

    fn check(self) -> Result<(), String> {
        let striped = self.width > 0 || !self.scheme.is_replicated();
        if striped != (self.unit_log2 > 0) {
            return Err("a stripe unit goes with striping, and only with it".into());
        }
        if self.unit_log2 > 0 && !(12..=20).contains(&self.unit_log2) {
            return Err("the stripe unit is a power of two from 4k to 1m".into());
        }
        if self.width > STRIPE_WIDTH_MAX || self.width == 1 {
            return Err(format!("the stripe width is 2 to {STRIPE_WIDTH_MAX} chunks"));
        }
        if self.width > 0 && !self.scheme.is_replicated() {
            return Err("an erasure scheme has its own stripe width".into());
        }
        if let Some(staged) = self.staged
            && (!self.scheme.is_replicated() || self.width > 0 || staged.is_replicated())
        {
            return Err("staged encoding goes from plain copies to an erasure scheme".into());
        }
        Ok(())
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.scheme)?;
        if self.width > 0 {
            write!(f, "x{}", self.width)?;
        }
        if let Some(unit) = self.stripe_unit() {
            if unit >= 1 << 20 {
                write!(f, "/{}m", unit >> 20)?;
            } else {
                write!(f, "/{}k", unit >> 10)?;
            }
        }
        if let Some(staged) = self.staged {
            write!(f, ">{staged}")?;
        }
        Ok(())
    }
}

impl FromStr for Layout {
    type Err = LayoutError;

    fn from_str(text: &str) -> Result<Self, LayoutError> {
        parse(text).map_err(|why| LayoutError { text: text.into(), why })
    }
}

fn parse(text: &str) -> Result<Layout, String> {
    let (now, staged) = match text.split_once('>') {
        Some((now, later)) => (now, Some(later.parse::<Scheme>()?)),
        None => (text, None),
    };
    let (now, unit) = match now.split_once('/') {
        Some((now, unit)) => (now, Some(unit.parse::<ByteCount>()?.0)),
        None => (now, None),
    };
    let (scheme, width) = match now.split_once('x') {
        Some((scheme, width)) => {
            let width: u16 = width.parse().map_err(|_| format!("{width:?} is no stripe width"))?;
            if width == 0 {
                return Err(format!("the stripe width is 2 to {STRIPE_WIDTH_MAX} chunks"));
            }
            (scheme.parse::<Scheme>()?, width)
        }
        None => (now.parse::<Scheme>()?, 0),
    };
    let striped = width > 0 || !scheme.is_replicated();
    let unit = unit.or(striped.then_some(STRIPE_UNIT_DEFAULT)).unwrap_or(0);
    if unit != 0 && !(unit.is_power_of_two() && (STRIPE_UNIT_MIN..=STRIPE_UNIT_MAX).contains(&unit)) {
        return Err("the stripe unit is a power of two from 4k to 1m".into());
    }
    let unit_log2 = if unit == 0 { 0 } else { unit.trailing_zeros() as u8 };
    let layout = Layout { scheme, width, unit_log2, staged };
    layout.check().map(|()| layout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_bits_round_trip() {
        for text in ["r1", "r3", "r5", "r2x128/64k", "rs-6-3/64k", "rs-10-4/1m", "r3>rs-10-4"] {
            let layout: Layout = text.parse().expect(text);
            assert_eq!(layout.to_string(), text);
            assert_eq!(Layout::from_bits(layout.to_bits()), Some(layout));
        }
        assert_eq!("rs-6-3".parse::<Layout>().map(|l| l.to_string()), Ok("rs-6-3/64k".into()));
    }

    #[test]
    fn golden_bits() {
        assert_eq!(Layout::replicated(3).to_bits(), 3);
        assert_eq!("r2x128/64k".parse::<Layout>().map(Layout::to_bits), Ok(0x1000_8002));
        assert_eq!("r3>rs-10-4".parse::<Layout>().map(Layout::to_bits), Ok(0x13_0000_0003));
    }

    #[test]
    fn wrong_layouts_say_why() {
        for text in
            ["", "r0", "r6", "r3/64k", "r2x1/64k", "r2x0", "rs-6-3/3k", "rs-6-3/2m", "rs-7-7", "r3>r2", "rs-6-3>r3"]
        {
            let error = text.parse::<Layout>().expect_err(text);
            assert!(error.to_string().contains("examples: r3"));
        }
        assert_eq!(Layout::from_bits(0), None);
        assert_eq!(Layout::from_bits(u64::MAX), None);
    }
}
