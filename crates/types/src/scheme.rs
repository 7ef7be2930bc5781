//! The closed table of redundancy schemes of placement groups. Codes are never reused.
use std::fmt;
use std::str::FromStr;

/// How the members of a placement group relate.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Scheme {
    /// The same bytes on each of n members.
    Replicated(u8),
    /// k data shards and m parity shards (Reed–Solomon).
    Erasure { k: u8, m: u8 },
}

/// (code, scheme): add at the end, never edit.
const TABLE: &[(u8, Scheme)] = &[
    (1, Scheme::Replicated(1)),
    (2, Scheme::Replicated(2)),
    (3, Scheme::Replicated(3)),
    (4, Scheme::Replicated(4)),
    (5, Scheme::Replicated(5)),
    (16, Scheme::Erasure { k: 3, m: 2 }),
    (17, Scheme::Erasure { k: 6, m: 3 }),
    (18, Scheme::Erasure { k: 8, m: 3 }),
    (19, Scheme::Erasure { k: 10, m: 4 }),
    (20, Scheme::Erasure { k: 12, m: 4 }),
    (21, Scheme::Erasure { k: 4, m: 2 }),
    (22, Scheme::Erasure { k: 6, m: 2 }),
    (23, Scheme::Erasure { k: 8, m: 2 }),
    (24, Scheme::Erasure { k: 10, m: 2 }),
];

impl Scheme {
    /// Every scheme of the table.
    pub fn all() -> impl Iterator<Item = Scheme> {
        TABLE.iter().map(|(_, scheme)| *scheme)
    }
    pub fn from_code(code: u8) -> Option<Self> {
        TABLE.iter().find(|(c, _)| *c == code).map(|(_, s)| *s)
    }
    /// Number on the wire and on disk.
    pub fn code(self) -> u8 {
        TABLE.iter().find(|(_, s)| *s == self).map(|(c, _)| *c).expect("schemes are made only from the table")
    }
    /// The feature level from which on builds know it ([`crate::feature`]).
    pub fn since_level(self) -> u32 {
        if self.code() >= 22 { 31 } else { 0 }
    }
    /// Disks of a placement group.
    pub fn members(self) -> usize {
        match self {
            Self::Replicated(n) => usize::from(n),
            Self::Erasure { k, m } => usize::from(k) + usize::from(m),
        }
    }
    /// Serving members below which nothing is written: r1 1, r2 1, r3 2, r4 2, r5 3, rs-k-m k + 1.
    pub fn write_minimum(self) -> usize {
        match self {
            Self::Replicated(n) => usize::from(n).div_ceil(2),
            Self::Erasure { k, .. } => usize::from(k) + 1,
        }
    }
    /// Losses that a complete group survives.
    pub fn tolerated_losses(self) -> usize {
        match self {
            Self::Replicated(n) => usize::from(n) - 1,
            Self::Erasure { m, .. } => usize::from(m),
        }
    }
    pub fn is_replicated(self) -> bool {
        matches!(self, Self::Replicated(_))
    }
    /// Members from which every byte can be read: one copy, or k shards.
    pub fn read_minimum(self) -> usize {
        match self {
            Self::Replicated(_) => 1,
            Self::Erasure { k, .. } => usize::from(k),
        }
    }
    /// Scheme of what is too short for a row of this one (small files, tails): copies that survive as many losses.
    pub fn short_scheme(self) -> Scheme {
        match self {
            Self::Replicated(_) => self,
            Self::Erasure { m, .. } => Self::Replicated(m + 1),
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Replicated(n) => write!(f, "r{n}"),
            Self::Erasure { k, m } => write!(f, "rs-{k}-{m}"),
        }
    }
}

impl FromStr for Scheme {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        TABLE.iter().map(|(_, s)| *s).find(|s| s.to_string() == text).ok_or_else(|| {
            let mut all: Vec<Scheme> = Scheme::all().collect();
            all.sort_by_key(|scheme| match *scheme {
                Self::Replicated(copies) => (0, copies, 0),
                Self::Erasure { k, m } => (1, k, m),
            });
            let names: Vec<String> = all.iter().map(|s| s.to_string()).collect();
            format!("{text:?} is no redundancy scheme; there are {}", names.join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_closed_and_unique() {
        for (i, (code, scheme)) in TABLE.iter().enumerate() {
            assert_eq!(Scheme::from_code(*code), Some(*scheme));
            assert_eq!(scheme.code(), *code);
            assert_eq!(scheme.to_string().parse(), Ok(*scheme));
            assert!(TABLE[i + 1..].iter().all(|(c, s)| c != code && s != scheme));
        }
    }

    /// A person would look for a scheme at the wrong place of the list.
    #[test]
    fn the_names_are_listed_in_order() {
        let error = "rs-7-7".parse::<Scheme>().expect_err("no such scheme");
        assert!(
            error.ends_with("r4, r5, rs-3-2, rs-4-2, rs-6-2, rs-6-3, rs-8-2, rs-8-3, rs-10-2, rs-10-4, rs-12-4"),
            "{error}"
        );
    }

    #[test]
    fn write_minimums_are_those_of_the_design() {
        let minimums: Vec<usize> = (1..=5).map(|n| Scheme::Replicated(n).write_minimum()).collect();
        assert_eq!(minimums, [1, 1, 2, 2, 3]);
        assert_eq!(Scheme::Erasure { k: 6, m: 3 }.write_minimum(), 7);
    }

    /// Members of an earlier build would get what they cannot decode.
    #[test]
    fn later_schemes_have_a_level() {
        let later: Vec<String> = Scheme::all().filter(|s| s.since_level() == 31).map(|s| s.to_string()).collect();
        assert_eq!(later, ["rs-6-2", "rs-8-2", "rs-10-2"]);
        assert!(Scheme::all().filter(|s| s.since_level() == 0).count() == 11);
    }

    /// A small file would survive fewer losses than a large one of the same directory.
    #[test]
    fn short_files_survive_as_much() {
        for scheme in Scheme::all() {
            let short = scheme.short_scheme();
            assert!(short.is_replicated() && Scheme::from_code(short.code()) == Some(short));
            assert_eq!(short.tolerated_losses(), scheme.tolerated_losses());
        }
    }
}
