//! Who is near whom: own host, own rack, elsewhere.

/// Where a process runs. Empty names mean "not told".
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Place<'a> {
    pub rack: &'a str,
    pub host: &'a str,
}

/// Distance between two places; smaller is nearer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Nearness {
    SameHost,
    SameRack,
    Other,
}

impl Nearness {
    /// Distance between `a` and `b`. A host name that was not told is near nobody; two processes with the same host
    /// name are on one host only if their racks agree or one of them was not told its rack (a client seldom is).
    pub fn between(a: Place<'_>, b: Place<'_>) -> Nearness {
        let racks_agree = a.rack == b.rack || a.rack.is_empty() || b.rack.is_empty();
        if racks_agree && !a.host.is_empty() && a.host == b.host {
            Nearness::SameHost
        } else if !a.rack.is_empty() && a.rack == b.rack {
            Nearness::SameRack
        } else {
            Nearness::Other
        }
    }
}

/// Orders `items` by their distance from `here`, nearest first. Equally near ones are turned by `turn` places (a
/// random number, or one that differs between callers), so that not everybody asks the first.
pub fn sort_by_nearness<'p, T>(items: &mut [T], here: Place<'_>, turn: u64, place: impl Fn(&T) -> Place<'p>) {
    let near = |item: &T| Nearness::between(here, place(item));
    items.sort_by_key(near);
    let mut rest = items;
    while !rest.is_empty() {
        let level = near(&rest[0]);
        let same = rest.iter().take_while(|item| near(item) == level).count();
        let (group, others) = rest.split_at_mut(same);
        group.rotate_left((turn % same as u64) as usize);
        rest = others;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at<'a>(rack: &'a str, host: &'a str) -> Place<'a> {
        Place { rack, host }
    }

    /// Readers would cross racks for nothing if distances were wrong.
    #[test]
    fn distances() {
        assert_eq!(Nearness::between(at("a", "h"), at("a", "h")), Nearness::SameHost);
        assert_eq!(Nearness::between(at("a", "h"), at("b", "h")), Nearness::Other);
        assert_eq!(Nearness::between(at("", "h"), at("b", "h")), Nearness::SameHost);
        assert_eq!(Nearness::between(at("a", "g"), at("a", "h")), Nearness::SameRack);
        assert_eq!(Nearness::between(at("", ""), at("", "")), Nearness::Other);
    }

    /// All readers would load one member if equally near ones were always in the same order.
    #[test]
    fn nearest_first_and_equals_turn() {
        let places = [at("b", "1"), at("a", "2"), at("c", "3"), at("a", "me")];
        let order = |turn| {
            let mut items: Vec<usize> = (0..4).collect();
            sort_by_nearness(&mut items, at("a", "me"), turn, |i| places[*i]);
            items
        };
        assert_eq!(order(0), [3, 1, 0, 2]);
        assert_eq!(order(1), [3, 1, 2, 0]);
        assert_eq!(order(2), [3, 1, 0, 2]);
    }
}
