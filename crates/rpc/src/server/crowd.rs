//! [`Crowd`]: connections that have not said yet what they are, by where they come from. Whoever means it says it at
//! once; so of too many one that came long ago goes, of the site that has most: a flood pushes out itself.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};

/// Bounded by who lets in.
pub(super) struct Crowd<T> {
    by_number: BTreeMap<u64, (IpAddr, T)>,
    /// Their numbers, the oldest first.
    of_site: BTreeMap<IpAddr, BTreeSet<u64>>,
}

impl<T> Default for Crowd<T> {
    fn default() -> Self {
        Self { by_number: BTreeMap::new(), of_site: BTreeMap::new() }
    }
}

impl<T> Crowd<T> {
    pub(super) fn len(&self) -> usize {
        self.by_number.len()
    }

    /// Numbers grow.
    pub(super) fn enter(&mut self, number: u64, from: IpAddr, who: T) {
        let from = site(from);
        self.by_number.insert(number, (from, who));
        self.of_site.entry(from).or_default().insert(number);
    }

    pub(super) fn leave(&mut self, number: u64) -> Option<T> {
        let (from, who) = self.by_number.remove(&number)?;
        if let Some(numbers) = self.of_site.get_mut(&from) {
            numbers.remove(&number);
            if numbers.is_empty() {
                self.of_site.remove(&from);
            }
        }
        Some(who)
    }

    /// Whether where somebody comes from has far less of it than where most come from.
    pub(super) fn has_few_of(&self, from: IpAddr) -> bool {
        let most = self.of_site.values().map(BTreeSet::len).max().unwrap_or(0);
        self.of_site.get(&site(from)).map_or(0, BTreeSet::len) < most / 2
    }

    /// Takes out who is to go for another.
    pub(super) fn make_room(&mut self) -> Option<T> {
        let most = self.of_site.values().max_by_key(|numbers| numbers.len())?;
        let oldest = *most.first()?;
        self.leave(oldest)
    }

    /// Takes out those that are gone.
    pub(super) fn forget(&mut self, is_gone: impl Fn(&T) -> bool) {
        let gone: Vec<u64> =
            self.by_number.iter().filter(|(_, (_, who))| is_gone(who)).map(|(number, _)| *number).collect();
        for number in gone {
            self.leave(number);
        }
    }
}

/// Whose connections count together: an IPv4 address, or the network of an IPv6 host (which has 2^64 addresses).
pub(crate) fn site(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    /// A client's handshake would be cut off by strangers that come again and again.
    #[test]
    fn a_flood_pushes_out_itself() {
        let (mut crowd, client) = (Crowd::default(), IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)));
        let stranger = |number: u64| IpAddr::V4(Ipv4Addr::new(10, 0, 1, (number % 3) as u8));
        crowd.enter(0, client, 0);
        for number in 1..=16 {
            crowd.enter(number, stranger(number), number);
        }
        let mut gone = Vec::new();
        for number in 17..1000 {
            gone.extend(crowd.make_room());
            crowd.enter(number, stranger(number), number);
        }
        assert_eq!(crowd.len(), 17);
        assert!(gone.len() == 983 && !gone.contains(&0));
        assert_eq!(gone[..2], [1, 2], "the oldest of those");
        assert_eq!(crowd.leave(0), Some(0));
        crowd.forget(|number| *number < 998);
        assert_eq!(
            (crowd.len(), crowd.make_room(), crowd.make_room(), crowd.make_room()),
            (2, Some(998), Some(999), None)
        );
        assert!(crowd.of_site.is_empty());
    }

    /// Who comes alone would have to wait behind a flood, or the flood would not have to wait.
    #[test]
    fn where_few_come_from_is_told_from_where_most_do() {
        let (mut crowd, address) = (Crowd::default(), |last: u8| IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)));
        assert!(!crowd.has_few_of(address(1)));
        (0..8).for_each(|number| crowd.enter(number, address(1), ()));
        (8..11).for_each(|number| crowd.enter(number, address(2), ()));
        (11..15).for_each(|number| crowd.enter(number, address(3), ()));
        assert_eq!([0, 1, 2, 3].map(|last| crowd.has_few_of(address(last))), [true, false, true, false]);
    }

    /// Alone, whoever came first goes.
    #[test]
    fn of_one_site_the_oldest_goes() {
        let mut crowd = Crowd::default();
        (0..4).for_each(|number| crowd.enter(number, IpAddr::V4(Ipv4Addr::LOCALHOST), number));
        assert_eq!([crowd.make_room(), crowd.leave(1), crowd.make_room()], [Some(0), Some(1), Some(2)]);
    }

    /// One host would count as 2^64, or two hosts as one.
    #[test]
    fn what_counts_as_one_site() {
        let site = |text: &str| site(text.parse().expect("an address"));
        assert_eq!(site("2001:db8:1:2:3:4:5:6"), site("2001:db8:1:2:ffff::"));
        assert_ne!(site("2001:db8:1:2::1"), site("2001:db8:1:3::1"));
        assert_eq!(site("::ffff:10.0.0.1"), site("10.0.0.1"));
        assert_ne!(site("10.0.0.1"), site("10.0.0.2"));
    }
}
