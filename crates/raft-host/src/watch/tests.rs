//! A watch alone: what it hears, and what it makes of that.

use super::*;

const GROUP: GroupId = GroupId(5);

fn at(ms: u64) -> Time {
    Time(ms * 1_000_000)
}

fn followed(groups: &[(u32, u64)]) -> Followed {
    let groups = groups.iter().map(|&(group, term)| (GroupId(group), (term, 0))).collect();
    Followed { heard: at(0), life: 0, groups }
}

fn roll(life: u64, groups: &[(u32, u64)]) -> NodeBeat {
    let (groups, terms) = groups.iter().copied().unzip();
    NodeBeat { node: 2, life, roll: true, groups, terms, wall_ns: 1 }
}

fn woken(news: &News) -> Vec<(u32, &'static str)> {
    let what = |event: &Event| match event {
        Event::Wake => "wake",
        Event::LeaderLost(_) => "lost",
        _ => "other",
    };
    news.events.iter().map(|(group, event)| (group.0, what(event))).collect()
}

/// A group whose leader stopped, alone on a healthy node, would have no leader for ever.
#[test]
fn a_group_that_is_not_named_any_more_is_woken() {
    let mut followed = followed(&[(5, 3), (6, 4), (7, 4)]);
    let mut news = News::default();
    followed.hear(&roll(9, &[(5, 3), (6, 4), (7, 3)]), at(10), &mut news);
    assert!(woken(&news).is_empty(), "one that fell asleep after the list was made");
    followed.hear(&NodeBeat { node: 2, life: 9, ..NodeBeat::default() }, at(20), &mut news);
    assert!(woken(&news).is_empty(), "not every beat names them");
    followed.hear(&roll(9, &[(5, 3), (8, 1)]), at(30), &mut news);
    assert_eq!(woken(&news), [(7, "wake")], "one that was missed twice, or is led in another term");
    followed.hear(&roll(9, &[(5, 3)]), at(40), &mut news);
    assert_eq!(woken(&news), [(7, "wake"), (6, "wake")]);
    assert_eq!(followed.heard, at(40));
}

/// A node that starts anew quickly leads nothing any more, though it is heard.
#[test]
fn another_life_of_a_node_loses_what_it_led() {
    let mut followed = followed(&[(5, 3), (6, 4)]);
    let mut news = News::default();
    followed.hear(&roll(9, &[(5, 3), (6, 4)]), at(10), &mut news);
    followed.hear(&roll(9, &[(5, 3), (6, 4)]), at(20), &mut news);
    assert!(woken(&news).is_empty());
    followed.hear(&NodeBeat { node: 2, life: 10, ..NodeBeat::default() }, at(30), &mut news);
    assert_eq!(woken(&news), [(5, "lost"), (6, "lost")]);
}

/// Lists of different lengths come from nobody who is sound.
#[test]
fn a_list_that_makes_no_sense_wakes_nobody() {
    let mut followed = followed(&[(5, 3)]);
    let mut news = News::default();
    for _ in 0..3 {
        followed.hear(&NodeBeat { terms: vec![1, 2], ..roll(9, &[(5, 3)]) }, at(10), &mut news);
    }
    assert!(woken(&news).is_empty());
}

/// What a group told last is what counts, and a node without such groups is not watched.
#[test]
fn the_book_has_what_sleeps_and_nothing_else() {
    let mut book = Book::default();
    let (a, b) = (NodeId(2), NodeId(3));
    book.enter(GROUP, Slumber::Leads { term: 3 }, vec![a, b], at(1));
    book.enter(GroupId(6), Slumber::Follows { leader: b, term: 4 }, vec![a, b], at(2));
    assert_eq!((book.led.len(), book.followed.len(), book.asleep.len()), (2, 1, 2));
    book.strike(GROUP);
    assert!(book.led.is_empty() && book.followed[&b].heard == at(2));
    book.enter(GROUP, Slumber::Follows { leader: b, term: 5 }, vec![a, b], at(9));
    assert_eq!(book.followed[&b].heard, at(2), "another group does not make the node heard");
    book.strike(GroupId(6));
    book.strike(GROUP);
    assert!(book.followed.is_empty() && book.asleep.is_empty());
}
