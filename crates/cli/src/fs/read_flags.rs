//! Options of commands that read: answers of servers that do not lead, and when another member is asked too.
use crate::context::Context;
use crate::human::parse_duration;
use cairn_client::{HedgeBounds, StaleReads};
use clap::Args;
use std::time::Duration;

/// For commands that change nothing and ask for nothing but names and contents.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct StaleFlags {
    /// Where no leader answers, read what other servers have, not older than AGE (such as 30s) if it is given; says how
    /// old it is
    #[arg(long, value_name = "AGE", num_args = 0..=1, require_equals = true, default_missing_value = "", value_parser = parse_stale)]
    stale_ok: Option<StaleReads>,
}

impl StaleFlags {
    /// To be done before anything is connected.
    pub fn apply(&self, context: &Context) {
        if let Some(stale) = self.stale_ok {
            context.allow_stale(stale);
        }
    }
}

/// The same option before the verb, where it stood once: understood there, and shown behind the verb alone.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct HiddenStale {
    #[arg(id = "stale_before", long = "stale-ok", hide = true, value_name = "AGE", num_args = 0..=1, require_equals = true, default_missing_value = "", value_parser = parse_stale)]
    stale_ok: Option<StaleReads>,
}

impl HiddenStale {
    pub fn is_set(&self) -> bool {
        self.stale_ok.is_some()
    }
    pub fn apply(&self, context: &Context) {
        StaleFlags { stale_ok: self.stale_ok }.apply(context);
    }
}

/// No age: however old.
fn parse_stale(text: &str) -> std::result::Result<StaleReads, String> {
    let age_max = match text {
        "" => None,
        text => Some(parse_duration(text).ok_or("write it as 500ms, 30s, 15m, 2h or 7d")?),
    };
    Ok(StaleReads { age_max })
}

/// For commands that read contents.
#[derive(Args, Clone, Copy, Debug)]
pub struct HedgeFlags {
    /// A read that is not answered is never asked of another member sooner
    #[arg(
        long,
        env = "CAIRN_HEDGE_MIN",
        value_name = "MILLISECONDS",
        default_value_t = 25,
        value_parser = clap::value_parser!(u64).range(1..=10_000),
        hide_short_help = true
    )]
    hedge_min: u64,
    /// A read that is not answered is asked of another member after this at the latest; not less than --hedge-min
    #[arg(
        long,
        env = "CAIRN_HEDGE_MAX",
        value_name = "MILLISECONDS",
        default_value_t = 150,
        value_parser = clap::value_parser!(u64).range(1..=10_000),
        hide_short_help = true
    )]
    hedge_max: u64,
}

impl HedgeFlags {
    /// To be done before anything is connected.
    pub fn apply(&self, context: &Context) {
        let floor = Duration::from_millis(self.hedge_min);
        context.hedge_reads(HedgeBounds { floor, ceiling: Duration::from_millis(self.hedge_max).max(floor) });
    }
}

/// For commands that read contents and change nothing.
#[derive(Args, Clone, Copy, Debug)]
pub struct ReadFlags {
    #[command(flatten)]
    stale: StaleFlags,
    #[command(flatten)]
    hedge: HedgeFlags,
}

impl ReadFlags {
    /// To be done before anything is connected.
    pub fn apply(&self, context: &Context) {
        self.stale.apply(context);
        self.hedge.apply(context);
    }
}
