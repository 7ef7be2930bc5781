//! `cairn admin repair`: what is being made anew, how far it is, and what waits and why.
use super::{age, status};
use crate::context::Context;
use crate::error::Result;
use crate::human::bytes;
use crate::table::{Align, Table};
use cairn_client::admin::status::{ClusterStatus, RepairStatus};
use cairn_types::MemberState;
use clap::Args;
use serde_json::{Value, json};

#[derive(Args, Debug)]
pub struct RepairArgs {}

impl RepairArgs {
    pub async fn run(self, context: &Context) -> Result<()> {
        let (status, _) = status(context).await?;
        if context.out.is_json() {
            return context.out.json(&repair_json(&status));
        }
        for line in summary(&status) {
            context.out.line(line)?;
        }
        if status.repairs.is_empty() {
            return Ok(());
        }
        context.out.line(String::new())?;
        let mut table = Table::new(&[
            ("GROUP", Align::Right),
            ("DISK", Align::Right),
            ("FOR", Align::Right),
            ("SPARE", Align::Right),
            ("DONE", Align::Right),
            ("OF", Align::Right),
            ("RATE", Align::Right),
            ("LEFT", Align::Right),
            ("WHAT", Align::Left),
        ]);
        for repair in &status.repairs {
            table.row(cells(repair));
        }
        table.print(&context.out)
    }
}

fn is_under_way(repair: &RepairStatus) -> bool {
    repair.state == Some(MemberState::Syncing)
}

/// Milliseconds until it is done at the present rate.
fn left_ms(done: u64, total: u64, rate: u64) -> Option<u64> {
    (rate > 0).then(|| (total.saturating_sub(done) as f64 * 1000.0 / rate as f64) as u64)
}

fn what(repair: &RepairStatus) -> String {
    let what = match (repair.state, repair.filling) {
        (Some(MemberState::Syncing), true) => "is filled",
        (Some(MemberState::Syncing), false) => "catches up",
        (Some(MemberState::Waiting), _) => "is away, and waited for",
        (Some(MemberState::Offline), true) => "has no room, or is away",
        _ => "is away",
    };
    if repair.waits_for.is_empty() { what.into() } else { format!("{what}: {}", repair.waits_for) }
}

fn cells(repair: &RepairStatus) -> Vec<String> {
    let of_copies = |text: String| if is_under_way(repair) { text } else { "-".into() };
    let left = left_ms(repair.done_bytes, repair.total_bytes, repair.bytes_per_second);
    vec![
        repair.pg.to_string(),
        format!("d{}", repair.disk),
        if repair.replaces == 0 { "-".into() } else { format!("d{}", repair.replaces) },
        repair.spare.to_string(),
        of_copies(bytes(repair.done_bytes)),
        bytes(repair.total_bytes),
        of_copies(format!("{}/s", bytes(repair.bytes_per_second))),
        of_copies(left.map_or_else(|| "-".into(), age)),
        what(repair),
    ]
}

/// Sums over what is under way: bytes done, of how many, a second.
fn sums(status: &ClusterStatus) -> (u64, u64, u64) {
    let under_way = status.repairs.iter().filter(|repair| is_under_way(repair));
    under_way.fold((0, 0, 0), |(done, total, rate), repair| {
        (done + repair.done_bytes, total + repair.total_bytes, rate + repair.bytes_per_second)
    })
}

fn summary(status: &ClusterStatus) -> Vec<String> {
    if status.repairs.is_empty() {
        return vec!["nothing to repair: all placement groups have all their members".into()];
    }
    let count = |f: &dyn Fn(&RepairStatus) -> bool| status.repairs.iter().filter(|repair| f(repair)).count();
    let filled = count(&|repair| is_under_way(repair) && repair.filling);
    let catching_up = count(&|repair| is_under_way(repair) && !repair.filling);
    let away = status.repairs.len() - filled - catching_up;
    let (done, total, rate) = sums(status);
    let mut lines = vec![format!(
        "members     {filled} are filled in the place of others, {catching_up} catch up, {away} are away ({} of them due, \
         and wait for their turn)",
        status.repairs_queued
    )];
    if filled + catching_up > 0 {
        let left = left_ms(done, total, rate).map_or_else(|| "not known yet".into(), age);
        lines.push(format!("copied      {} of {}, {}/s, left: {left}", bytes(done), bytes(total), bytes(rate)));
    }
    lines
}

fn repair_json(status: &ClusterStatus) -> Value {
    let (done, total, rate) = sums(status);
    let repairs: Vec<Value> = status
        .repairs
        .iter()
        .map(|r| {
            json!({
                "pg": r.pg, "disk": r.disk, "replaces": (r.replaces != 0).then_some(r.replaces),
                "state": r.state.map(MemberState::name), "filling": r.filling, "spare": r.spare,
                "done_bytes": r.done_bytes, "total_bytes": r.total_bytes, "bytes_per_second": r.bytes_per_second,
                "left_ms": left_ms(r.done_bytes, r.total_bytes, r.bytes_per_second).filter(|_| is_under_way(r)),
                "waits_for": r.waits_for,
            })
        })
        .collect();
    json!({
        "repairs": repairs, "queued": status.repairs_queued, "done_bytes": done, "total_bytes": total,
        "bytes_per_second": rate, "left_ms": left_ms(done, total, rate),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Somebody who waits for redundancy would not see how long, or what will never come by itself.
    #[test]
    fn progress_and_what_waits() {
        let filled = RepairStatus {
            pg: 7,
            disk: 12,
            state: Some(MemberState::Syncing),
            filling: true,
            replaces: 3,
            done_bytes: 1 << 30,
            total_bytes: 4 << 30,
            bytes_per_second: 100 << 20,
            spare: 1,
            ..RepairStatus::default()
        };
        let blocked = RepairStatus {
            pg: 8,
            disk: 3,
            state: Some(MemberState::Offline),
            waits_for: "no disk in service is outside pg8".into(),
            ..RepairStatus::default()
        };
        let status = ClusterStatus { repairs: vec![filled, blocked], repairs_queued: 1, ..ClusterStatus::default() };
        let text = summary(&status).join("\n");
        assert!(text.contains("1 are filled in the place of others, 0 catch up, 1 are away"), "{text}");
        assert!(text.contains("1.0 GiB of 4.0 GiB, 100.0 MiB/s, left: 30 s"), "{text}");
        assert_eq!(cells(&status.repairs[0])[8], "is filled");
        assert_eq!(cells(&status.repairs[1])[8], "is away: no disk in service is outside pg8");
        let json = repair_json(&status);
        assert_eq!((&json["left_ms"], &json["repairs"][0]["replaces"]), (&json!(30_720), &json!(3)));
        assert_eq!(summary(&ClusterStatus::default()).len(), 1);
    }
}
