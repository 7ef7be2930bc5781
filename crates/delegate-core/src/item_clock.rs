//! [`ItemClock`]: which time an item gets. It is the partition's, as far as the holder knows it, and later than that of
//! the item before: programs tell by its times that a file was changed.

use cairn_types::{Time, WallTime};

/// See the module.
#[derive(Debug, Clone, Copy)]
pub struct ItemClock {
    /// What the partition told, and when the holder heard of it.
    told: (WallTime, Time),
    last: WallTime,
}

impl ItemClock {
    /// The partition told a time.
    pub const fn new(told: WallTime, now: Time) -> Self {
        Self { told: (told, now), last: told }
    }

    /// The partition told a later time. Where the clock was ahead of it, because this answer took longer than the one
    /// before, items get times right behind each other until that is reached.
    pub fn told(&mut self, told: WallTime, now: Time) {
        if told > self.told.0 {
            self.told = (told, now);
        }
    }

    /// The time of what happens now.
    pub fn at(&self, now: Time) -> WallTime {
        let (told, heard) = self.told;
        let passed = u64::try_from(now.since(heard).as_nanos()).unwrap_or(u64::MAX);
        WallTime(self.last.0.saturating_add(1).max(told.0.saturating_add(passed)))
    }

    /// An item got this time.
    pub fn gave(&mut self, time: WallTime) {
        self.last = self.last.max(time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The partition refuses an item that is older than the one before it, and who watches a file sees no change of one
    /// that has the same time.
    #[test]
    fn follows_the_partition_and_never_stands() {
        let mut clock = ItemClock::new(WallTime(1000), Time(0));
        assert_eq!(clock.at(Time(50)), WallTime(1050));
        clock.gave(WallTime(1050));
        clock.told(WallTime(1020), Time(60));
        assert_eq!(clock.at(Time(70)), WallTime(1051));
        clock.gave(WallTime(1051));
        assert_eq!(clock.at(Time(71)), WallTime(1052));
        assert_eq!(clock.at(Time(110)), WallTime(1070));
        clock.told(WallTime(2000), Time(110));
        clock.told(WallTime(1500), Time(120));
        assert_eq!(clock.at(Time(120)), WallTime(2010));
    }
}
