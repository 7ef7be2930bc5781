//! When a chunk that owes answers has been silent for so long that its members are looked at. Pure.
use cairn_types::Time;
use std::time::Duration;

/// A chunk that answers nothing for so long has its members looked at: what answers goes on being waited for. With the
/// look (0.3 s), the manager's own (0.3 s) and the opening of another chunk, a stopped member costs less than 2 s.
const LOOK_AFTER: Duration = Duration::from_millis(400);

/// Calls that are not answered yet, and since when nothing was heard.
#[derive(Debug)]
pub(crate) struct Silence {
    owed: usize,
    /// The last time at which something was answered, or asked while nothing else was.
    heard: Time,
    patience: Duration,
}

impl Default for Silence {
    fn default() -> Self {
        Self { owed: 0, heard: Time(0), patience: LOOK_AFTER }
    }
}

impl Silence {
    /// Something is asked now.
    pub(crate) fn asked(&mut self, now: Time) {
        if self.owed == 0 {
            self.heard = now;
        }
        self.owed += 1;
    }
    /// Something was answered.
    pub(crate) fn answered(&mut self, now: Time) {
        self.owed = self.owed.saturating_sub(1);
        self.heard = now;
        self.patience = LOOK_AFTER;
    }
    /// Answers are owed.
    pub(crate) fn waits(&self) -> bool {
        self.owed > 0
    }
    /// Another look is worth while after so long, if nothing is answered until then.
    pub(crate) fn look_again(&mut self, now: Time, after: Duration) {
        let elapsed = now.since(self.heard);
        self.patience = self.patience.min(elapsed + after);
    }
    pub(crate) fn is_late(&self, now: Time) -> bool {
        self.lasts(now, self.patience)
    }
    /// Nothing was heard for so long.
    pub(crate) fn lasts(&self, now: Time, time: Duration) -> bool {
        self.waits() && now.since(self.heard) >= time
    }
    /// It is time to look at the members, and again after twice the time.
    pub(crate) fn takes_look(&mut self, now: Time) -> bool {
        let late = self.is_late(now);
        if late {
            self.heard = now;
            self.patience *= 2;
        }
        late
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Members would be pinged all the time while disks are slow, or never while one stands still.
    #[test]
    fn only_silence_is_looked_into_and_ever_more_rarely() {
        let (mut silence, start) = (Silence::default(), Time(5_000_000_000));
        assert!(!silence.takes_look(start), "nothing is owed");
        silence.asked(start);
        silence.asked(start + LOOK_AFTER / 2);
        assert!(!silence.takes_look(start + LOOK_AFTER / 2));
        assert!(silence.takes_look(start + LOOK_AFTER) && !silence.takes_look(start + LOOK_AFTER * 2));
        assert!(silence.takes_look(start + LOOK_AFTER * 3));
        silence.answered(start + LOOK_AFTER * 3);
        assert!(silence.takes_look(start + LOOK_AFTER * 4), "one is still owed");
        silence.answered(start + LOOK_AFTER * 4);
        assert!(!silence.waits() && !silence.takes_look(start + LOOK_AFTER * 99));
    }
}
