//! How fast chunks of whole shards are made. After each piece of work comes a rest as long as the work took, and longer
//! the slower it went than it goes at best: so encoding gives way to whoever uses disks, links and processors, without
//! knowing of them, and goes on as before when they have ended.
//!
//! Invariants: rests of one call end with [`RESTS_MAX`], well before whoever asked for it gives up; the best is one of
//! about the last ten minutes, so that a machine that became slower for good is not taken for a busy one for ever.
//! Not here: bytes a second (`meta`).
use cairn_env::Clock;
use cairn_types::Time;
use parking_lot::Mutex;
use std::time::Duration;
use tokio::time::sleep;

/// In this time what was best counts as twice as slow.
const FORGET: Duration = Duration::from_secs(600);
/// Longest rest, in times of the work before it.
const TIMES_MAX: f64 = 9.0;
/// Longest rest behind one piece, and all rests of one call.
const REST_MAX: Duration = Duration::from_secs(5);
const RESTS_MAX: Duration = Duration::from_secs(120);

/// What is done, as the same bytes take other times.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// Read, computed, written.
    Write,
    ReadBack,
}

/// The best that was seen on this node, of each step.
#[derive(Default, Debug)]
pub(crate) struct Best([Mutex<Option<Seen>>; 2]);

#[derive(Clone, Copy, Debug)]
struct Seen {
    /// Seconds a byte.
    cost: f64,
    at: Time,
}

impl Best {
    /// How many times as long as at best some bytes took; 1 where it is the best.
    fn slower(&self, step: Step, bytes: u64, took: Duration, now: Time) -> f64 {
        let cost = took.as_secs_f64() / bytes.max(1) as f64;
        let mut best = self.0[step as usize].lock();
        let known = best.map(|seen| seen.cost * (now.since(seen.at).as_secs_f64() / FORGET.as_secs_f64()).exp2());
        match known.filter(|known| cost > *known) {
            Some(known) => cost / known,
            None => {
                *best = Some(Seen { cost, at: now });
                1.0
            }
        }
    }
}

/// The rest behind work that took so long, and so many times as long as at best.
fn rest(took: Duration, slower: f64) -> Duration {
    took.mul_f64((2.0 * slower - 1.0).clamp(1.0, TIMES_MAX)).min(REST_MAX)
}

/// The pace of one call.
pub(crate) struct Pace<'a> {
    best: &'a Best,
    clock: &'a dyn Clock,
    /// Without it nothing rests.
    gentle: bool,
    rested: Mutex<Duration>,
}

impl<'a> Pace<'a> {
    pub(crate) fn new(best: &'a Best, clock: &'a dyn Clock, gentle: bool) -> Self {
        Self { best, clock, gentle, rested: Mutex::default() }
    }

    /// Rests behind a piece of work.
    pub(crate) async fn after(&self, step: Step, bytes: u64, began: Time) {
        let now = self.clock.now();
        let took = now.since(began);
        let slower = self.best.slower(step, bytes, took, now);
        if !self.gentle {
            return;
        }
        let rest = {
            let mut rested = self.rested.lock();
            let rest = rest(took, slower).min(RESTS_MAX.saturating_sub(*rested));
            *rested += rest;
            rest
        };
        sleep(rest).await;
    }

    /// All rests so far.
    pub(crate) fn rested(&self) -> Duration {
        *self.rested.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time(seconds * 1_000_000_000)
    }

    /// Encoding would take as much from writers on a busy node as on an idle one.
    #[test]
    fn the_slower_it_goes_the_longer_it_rests() {
        let best = Best::default();
        let ms = Duration::from_millis;
        let took = |took: Duration, now: u64| rest(took, best.slower(Step::Write, 1 << 20, took, at(now)));
        assert_eq!(took(ms(20), 1), ms(20), "nothing is known to be better");
        assert_eq!(took(ms(10), 1), ms(10));
        assert!((took(ms(20), 1).as_secs_f64() - 0.060).abs() < 0.001, "half as fast: a quarter of the time");
        assert!((took(ms(30), 1).as_secs_f64() - 0.150).abs() < 0.001);
        assert_eq!(took(ms(100), 1), ms(900), "never less than a tenth of the time");
        assert_eq!(took(ms(1000), 1), REST_MAX);
        let other = best.slower(Step::ReadBack, 1 << 20, ms(100), at(1));
        assert_eq!(other, 1.0, "another step");
        let half = best.slower(Step::Write, 1 << 19, ms(5), at(1));
        assert_eq!(half, 1.0, "by bytes");
    }

    /// A disk that was replaced by a slower one would be taken for a busy one for ever.
    #[test]
    fn the_best_is_forgotten() {
        let best = Best::default();
        let slower = |took: u64, now: u64| best.slower(Step::Write, 1000, Duration::from_millis(took), at(now));
        assert_eq!(slower(10, 1), 1.0);
        assert!((slower(40, 1) - 4.0).abs() < 0.01);
        assert!((slower(40, 601) - 2.0).abs() < 0.01);
        assert_eq!(slower(40, 1301), 1.0, "as good as it gets");
        assert!((slower(60, 1301) - 1.5).abs() < 0.01);
    }

    /// The call would end by its deadline, and what it made be made anew each time.
    #[tokio::test(start_paused = true)]
    async fn rests_of_a_call_end() {
        struct Tokio(tokio::time::Instant);
        impl Clock for Tokio {
            fn now(&self) -> Time {
                Time(self.0.elapsed().as_nanos() as u64)
            }
            fn wall(&self) -> cairn_types::WallTime {
                cairn_types::WallTime(0)
            }
        }
        let (clock, best) = (Tokio(tokio::time::Instant::now()), Best::default());
        sleep(Duration::from_secs(1)).await;
        best.slower(Step::Write, 1 << 20, Duration::from_millis(1), clock.now());
        let pace = Pace::new(&best, &clock, true);
        for _ in 0..100 {
            let began = clock.now();
            sleep(Duration::from_secs(1)).await;
            pace.after(Step::Write, 1 << 20, began).await;
        }
        assert_eq!(pace.rested(), RESTS_MAX);
        let hurried = Pace::new(&best, &clock, false);
        hurried.after(Step::Write, 1 << 20, Time(0)).await;
        assert_eq!(hurried.rested(), Duration::ZERO);
    }
}
