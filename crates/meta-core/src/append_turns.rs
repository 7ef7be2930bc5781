//! Turns of those who append to one file at the same time: each is told where its bytes come to lie if all before it
//! are published, so that nobody writes what has to be written again.
//!
//! Memory of one leader, and nothing but advice: what makes an append whole is that its publish compares the size. A
//! turn that is forgotten, or a file that grows in another way, costs its writers a rewrite. Invariant: the turns of a
//! file follow each other without a gap, the first one begins where the file ended when it was looked at last. Bounds:
//! [`FILES_MAX`] files, [`TURNS_MAX`] turns of each. The time is told.
use cairn_types::Time;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Files with turns.
const FILES_MAX: usize = 4096;
/// Turns of a file.
const TURNS_MAX: usize = 1024;
/// Whoever is first and publishes nothing for so long is not waited for any more.
const PATIENCE: Duration = Duration::from_secs(1);
/// As much longer for so many bytes that it writes …
const SLOWEST: u64 = 8 << 20;
/// … and so often at most.
const PATIENCE_TIMES: u64 = 16;
/// Largest size of a file.
const SIZE_MAX: u64 = i64::MAX as u64;
/// Number of a publish that has no turn, and waits for one if others have.
pub const NO_TURN: u64 = 1;

/// How a turn stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TurnState {
    /// The file ends where it begins.
    First,
    /// Others are before it.
    Waits,
    /// It is not known, or the file grew in another way: whoever had it asks for another one.
    Gone,
}

#[derive(Clone, Copy, Debug)]
struct Turn {
    number: u64,
    begin: u64,
    end: u64,
}

struct Queue {
    turns: VecDeque<Turn>,
    /// Since when the first one is that.
    since: Time,
}

/// See the module.
pub struct AppendTurns {
    files: BTreeMap<u64, Queue>,
    next: u64,
}

impl Default for AppendTurns {
    fn default() -> Self {
        Self { files: BTreeMap::new(), next: NO_TURN + 1 }
    }
}

impl Queue {
    /// The first one is not waited for any more.
    fn is_over(&self, now: Time) -> bool {
        let bytes = self.turns.front().map_or(0, |turn| turn.end - turn.begin);
        now.since(self.since) >= PATIENCE * (1 + bytes / SLOWEST).min(PATIENCE_TIMES) as u32
    }
    /// The file has that size now. False: nobody is left whose turn it may become.
    fn look(&mut self, size: u64, now: Time) -> bool {
        let first = |turns: &VecDeque<Turn>| turns.front().map(|turn| turn.begin);
        if first(&self.turns) == Some(size) {
            return !self.is_over(now);
        }
        while first(&self.turns).is_some_and(|begin| begin != size) {
            self.turns.pop_front();
        }
        self.since = now;
        !self.turns.is_empty()
    }
}

impl AppendTurns {
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// A turn of so many bytes, behind all others: its number and where it begins. None: there is no room for it.
    pub fn take(&mut self, inode: u64, size: u64, length: u64, now: Time) -> Option<(u64, u64)> {
        self.look(inode, size, now);
        if self.files.len() >= FILES_MAX && !self.files.contains_key(&inode) {
            self.expire(now);
        }
        if length == 0 || self.files.len() >= FILES_MAX && !self.files.contains_key(&inode) {
            return None;
        }
        let begin = self.files.get(&inode).and_then(|queue| queue.turns.back()).map_or(size, |last| last.end);
        let end = begin.checked_add(length).filter(|end| *end <= SIZE_MAX)?;
        let queue = self.files.entry(inode).or_insert_with(|| Queue { turns: VecDeque::new(), since: now });
        if queue.turns.len() >= TURNS_MAX {
            return None;
        }
        let number = self.next;
        self.next += 1;
        queue.turns.push_back(Turn { number, begin, end });
        Some((number, begin))
    }

    /// How a turn stands.
    pub fn state(&mut self, inode: u64, number: u64, size: u64, now: Time) -> TurnState {
        self.look(inode, size, now);
        let place = self.files.get(&inode).and_then(|queue| queue.turns.iter().position(|turn| turn.number == number));
        match place {
            Some(0) => TurnState::First,
            Some(_) => TurnState::Waits,
            None => TurnState::Gone,
        }
    }

    /// Whoever has that turn does not come: it and those behind it, whose places follow from it, are gone.
    pub fn give_up(&mut self, inode: u64, number: u64) {
        let Some(queue) = self.files.get_mut(&inode) else { return };
        if let Some(place) = queue.turns.iter().position(|turn| turn.number == number) {
            queue.turns.truncate(place);
        }
        if queue.turns.is_empty() {
            self.files.remove(&inode);
        }
    }

    /// Whether somebody who publishes an append behind that size takes nobody's turn: it is his, or there is none.
    pub fn admits(&mut self, inode: u64, number: u64, size: u64, now: Time) -> bool {
        self.look(inode, size, now);
        let first = self.files.get(&inode).and_then(|queue| queue.turns.front());
        first.is_none_or(|first| first.number == number)
    }

    /// A file may have got that size.
    pub fn look(&mut self, inode: u64, size: u64, now: Time) {
        if let Some(queue) = self.files.get_mut(&inode)
            && !queue.look(size, now)
        {
            self.files.remove(&inode);
        }
    }

    /// Forgets those of whom the first one is not waited for any more.
    pub fn expire(&mut self, now: Time) {
        self.files.retain(|_, queue| !queue.is_over(now));
    }

    /// Forgets all: another member leads.
    pub fn clear(&mut self) {
        self.files.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: u64 = 7;

    fn at(millis: u64) -> Time {
        Time(millis * 1_000_000)
    }

    /// Those who append at once would write the same place, and all but one again.
    #[test]
    fn turns_follow_each_other() {
        let mut turns = AppendTurns::default();
        let (a, at_a) = turns.take(FILE, 100, 10, at(0)).expect("room");
        let (b, at_b) = turns.take(FILE, 100, 20, at(0)).expect("room");
        let (c, at_c) = turns.take(FILE, 100, 30, at(0)).expect("room");
        assert_eq!((at_a, at_b, at_c), (100, 110, 130));
        let mut states = |size, now| [a, b, c].map(|number| turns.state(FILE, number, size, now));
        use TurnState::{First, Gone, Waits};
        assert_eq!(states(100, at(1)), [First, Waits, Waits]);
        assert_eq!(states(110, at(2)), [Gone, First, Waits]);
        // Several were published between two looks.
        assert_eq!(states(130, at(3)), [Gone, Gone, First]);
        assert_eq!(states(160, at(4)), [Gone, Gone, Gone]);
        assert!(turns.is_empty());
        assert_eq!(turns.take(FILE, 160, 5, at(5)).map(|(_, begin)| begin), Some(160));
    }

    /// Everybody would wait for ever behind one who died, or behind a size that never comes.
    #[test]
    fn what_breaks_the_row_ends_all_turns() {
        let mut turns = AppendTurns::default();
        let (a, _) = turns.take(FILE, 0, 10, at(0)).expect("room");
        let (b, _) = turns.take(FILE, 0, 10, at(900)).expect("room");
        assert_eq!(turns.state(FILE, b, 0, at(999)), TurnState::Waits);
        assert_eq!(turns.state(FILE, b, 0, at(1000)), TurnState::Gone, "the first one is dead");
        assert_eq!(turns.state(FILE, a, 0, at(1000)), TurnState::Gone);
        let (a, _) = turns.take(FILE, 0, 10, at(2000)).expect("room");
        let (b, _) = turns.take(FILE, 0, 10, at(2000)).expect("room");
        assert!(!turns.admits(FILE, NO_TURN, 0, at(2001)) && !turns.admits(FILE, b, 0, at(2001)));
        assert!(turns.admits(FILE, a, 0, at(2001)) && turns.admits(FILE + 1, NO_TURN, 0, at(2001)));
        assert_eq!(turns.state(FILE, a, 5, at(2002)), TurnState::Gone, "somebody else made it longer");
        assert!(turns.admits(FILE, NO_TURN, 5, at(2003)));
        let [a, b, c] = [0; 3].map(|_| turns.take(FILE, 5, 10, at(2500)).expect("room").0);
        turns.give_up(FILE, b);
        let states = [a, b, c].map(|number| turns.state(FILE, number, 5, at(2501)));
        assert_eq!(states, [TurnState::First, TurnState::Gone, TurnState::Gone], "nobody waits for one who gave up");
        turns.give_up(FILE, a);
        assert!(turns.is_empty());
        // The second one's patience begins when it is the first.
        let (_, _) = turns.take(FILE, 5, 10, at(3000)).expect("room");
        let (b, _) = turns.take(FILE, 5, 10, at(3000)).expect("room");
        assert_eq!(turns.state(FILE, b, 15, at(3900)), TurnState::First);
        assert_eq!(turns.state(FILE, b, 15, at(4800)), TurnState::First);
        turns.expire(at(5000));
        assert!(turns.is_empty(), "what nobody asks for is forgotten");
    }

    /// Whoever appends much would never come to it beside those who append lines.
    #[test]
    fn who_writes_much_is_waited_for_longer() {
        let mut turns = AppendTurns::default();
        let (much, _) = turns.take(FILE, 0, 3 * SLOWEST, at(0)).expect("room");
        turns.expire(at(3900));
        assert_eq!(turns.state(FILE, much, 0, at(3999)), TurnState::First);
        assert_eq!(turns.state(FILE, much, 0, at(4000)), TurnState::Gone);
        let (all, _) = turns.take(FILE, 0, SIZE_MAX, at(5000)).expect("room");
        assert_eq!(turns.state(FILE, all, 0, at(5000 + 16_000)), TurnState::Gone, "but not for ever");
    }

    /// One client would take all of a leader's memory.
    #[test]
    fn turns_are_bounded() {
        let mut turns = AppendTurns::default();
        let taken = (0..2 * TURNS_MAX).filter(|_| turns.take(FILE, 0, 1, at(0)).is_some()).count();
        assert_eq!(taken, TURNS_MAX);
        assert_eq!(turns.take(FILE + 1, SIZE_MAX, 1, at(0)), None, "no file is that long");
        assert_eq!(turns.take(FILE + 1, 0, 0, at(0)), None);
        let files = (0..2 * FILES_MAX as u64).filter(|i| turns.take(100 + i, 0, 1, at(0)).is_some()).count();
        assert!(files < FILES_MAX);
        assert!(turns.take(1 << 40, 0, 1, at(1000)).is_some(), "the old ones make room");
    }
}
