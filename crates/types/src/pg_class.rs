//! What kind of data a placement group is for: groups of different classes never take each other's chunks.
use crate::layout::Layout;
use crate::scheme::Scheme;
use std::fmt;

/// A scheme, and for columns of stripe groups the scheme that their copies are encoded to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PgClass {
    pub scheme: Scheme,
    /// Of columns of stripe groups only.
    pub later: Option<Scheme>,
}

impl PgClass {
    /// Groups of the same scheme that are no columns.
    pub const fn plain(self) -> PgClass {
        PgClass { scheme: self.scheme, later: None }
    }
    /// Groups for what is too short for a row: of copies they are the same.
    pub fn short(self) -> PgClass {
        if self.scheme.is_replicated() { self } else { self.scheme.short_scheme().into() }
    }
}

impl From<Scheme> for PgClass {
    fn from(scheme: Scheme) -> PgClass {
        PgClass { scheme, later: None }
    }
}

impl Layout {
    /// Where bytes of a file are written now: copies that wait to be encoded to columns, everything else to groups of
    /// no class.
    pub fn pg_class(self) -> PgClass {
        PgClass { scheme: self.scheme(), later: self.staged().filter(|_| !self.stage().is_encoded()) }
    }
}

impl fmt::Display for PgClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.scheme)?;
        self.later.map_or(Ok(()), |later| write!(f, ">{later}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stage::Stage;

    /// Files that are never encoded would lie in columns, or encoded ones be written as copies that wait.
    #[test]
    fn only_copies_that_wait_go_to_columns() {
        let layout: Layout = "r3>rs-6-3@2h".parse().expect("a layout");
        let class = |stage: Stage| layout.in_stage(stage).pg_class().to_string();
        assert_eq!([Stage::Copies, Stage::Kept].map(class), ["r3>rs-6-3", "r3>rs-6-3"]);
        assert_eq!([Stage::Encoded, Stage::Changed].map(class), ["rs-6-3", "rs-6-3"]);
        let plain = |text: &str| text.parse::<Layout>().expect("a layout").pg_class();
        assert_eq!((plain("r3").to_string(), plain("rs-6-3").short().to_string()), ("r3".into(), "r4".into()));
        let columns = layout.pg_class();
        assert_eq!((columns.short(), columns.plain()), (columns, plain("r3")));
    }
}
