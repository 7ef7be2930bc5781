//! Failure domains as small numbers: racks, and hosts within racks.
//!
//! Invariant: two places get one number exactly if they are one domain. A host name counts within its rack, so
//! that equal names in two racks are two hosts.
use std::collections::BTreeMap;

/// Gives numbers to names of racks and hosts.
#[derive(Clone, Default, Debug)]
pub struct Domains {
    racks: BTreeMap<String, u32>,
    hosts: BTreeMap<(u32, String), u32>,
}

impl Domains {
    pub fn new() -> Self {
        Self::default()
    }

    /// The number of a rack; an empty name is a rack like any other ("not told").
    pub fn rack(&mut self, rack: &str) -> u32 {
        if let Some(number) = self.racks.get(rack) {
            return *number;
        }
        let number = self.racks.len() as u32;
        self.racks.insert(rack.to_string(), number);
        number
    }

    /// The numbers of a rack and of a host in it.
    pub fn host(&mut self, rack: &str, host: &str) -> (u32, u32) {
        let rack = self.rack(rack);
        let next = self.hosts.len() as u32;
        let number = *self.hosts.entry((rack, host.to_string())).or_insert(next);
        (rack, number)
    }

    /// Racks seen.
    pub fn racks(&self) -> usize {
        self.racks.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two copies would land on one machine if a host had two numbers, or two machines one.
    #[test]
    fn one_domain_one_number() {
        let mut domains = Domains::new();
        let a = domains.host("a", "h1");
        assert_eq!(domains.host("a", "h1"), a);
        assert_ne!(domains.host("a", "h2").1, a.1);
        assert_ne!(domains.host("b", "h1").1, a.1);
        assert_eq!(domains.racks(), 2);
    }
}
