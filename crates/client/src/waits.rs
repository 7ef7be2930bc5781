//! Servers that do not answer, told to whoever waits: a call tries for half a minute, and a person should not have to
//! guess what it does.
//!
//! Bounds: the first word after [`FIRST`], then one each [`AGAIN`], however many calls wait.
use cairn_types::Time;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

/// A call has waited for so long.
const FIRST: Duration = Duration::from_secs(2);
const AGAIN: Duration = Duration::from_secs(10);

type Tell = Arc<dyn Fn(&str) + Send + Sync>;

/// Who is told that a call still waits, and why the last attempt failed; nobody, if nothing is said.
#[derive(Clone, Default)]
pub struct ToldWaits(Option<Tell>);

impl ToldWaits {
    pub fn to(tell: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(tell)))
    }
}

impl std::fmt::Debug for ToldWaits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() { "ToldWaits(somebody)" } else { "ToldWaits(nobody)" })
    }
}

#[derive(Default)]
pub(crate) struct Waits {
    pub told: ToldWaits,
    last: Mutex<Option<Time>>,
}

impl Waits {
    /// A call that began then goes on trying after this failure.
    pub(crate) fn goes_on(&self, began: Time, now: Time, why: &str) {
        let Some(tell) = &self.told.0 else { return };
        if now.since(began) < FIRST {
            return;
        }
        let mut last = self.last.lock();
        if last.is_none_or(|last| now.since(last) >= AGAIN) {
            *last = Some(now);
            drop(last);
            tell(why);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A person would look at a silent command for half a minute, or at the same line again and again.
    #[test]
    fn who_waits_is_told_now_and_then() {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let into = heard.clone();
        let waits = Waits { told: ToldWaits::to(move |why| into.lock().push(why.to_owned())), ..Waits::default() };
        let second = |seconds: u64| Time(seconds * 1_000_000_000);
        for now in 100..130 {
            waits.goes_on(second(100), second(now), &format!("at {now}"));
            waits.goes_on(second(100), second(now), "another call");
        }
        assert_eq!(*heard.lock(), ["at 102", "at 112", "at 122"]);
        waits.goes_on(second(139), second(140), "it only began");
        assert_eq!(heard.lock().len(), 3);
    }
}
