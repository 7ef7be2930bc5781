//! `cairn fs append --record`: standard input as framed records, at the side of any number of other writers.
//!
//! Memory: what is read ahead, the window of the writer, and a note of each of [`TICKETS_MAX`] records.
use super::{Cutter, Unit};
use crate::context::Context;
use crate::error::{CliError, Result};
use crate::human::bytes;
use crate::output::put_name;
use crate::remote::NamedFor;
use crate::transfer::stdin::read_as_it_comes;
use cairn_client::record::{RecordAppender, RecordLevel, RecordOptions, RecordTicket};
use cairn_client::{RemotePath, Volume};
use serde_json::{Map, Value, json};
use std::collections::VecDeque;

/// Records that are not known to be appended.
const TICKETS_MAX: usize = 4096;

pub(super) fn parse_level(text: &str) -> std::result::Result<RecordLevel, String> {
    match text {
        "memory" => Ok(RecordLevel::Memory),
        "durable" => Ok(RecordLevel::Durable),
        "visible" => Ok(RecordLevel::Visible),
        _ => Err("levels are memory, durable and visible".into()),
    }
}

/// What was given, and what of it is appended.
struct Given {
    appender: RecordAppender,
    tickets: VecDeque<(RecordTicket, u64)>,
    records: u64,
    bytes: u64,
}

pub(super) async fn append(
    context: &Context,
    volume: &Volume,
    at: RemotePath,
    unit: Unit,
    level: RecordLevel,
) -> Result<()> {
    let options = RecordOptions { level, ..RecordOptions::default() };
    let appender = volume.record_appender(&at.path, options).await.map_err(|e| e.named_for(&at))?;
    let mut given = Given { appender, tickets: VecDeque::new(), records: 0, bytes: 0 };
    let outcome = given.run(&at, unit).await;
    let flushed = given.appender.flush().await.map_err(|e| CliError::from(e.named_for(&at)));
    while let Some((ticket, bytes)) = given.tickets.pop_front() {
        match ticket.done().await {
            Ok(()) => given.count(bytes),
            Err(_) => break,
        }
    }
    if let Err(error) = outcome.and(flushed) {
        let text = format!("the first {} records of the input, {}, are in {at}", given.records, bytes(given.bytes));
        context.plain_report().warn(&text);
        return Err(error);
    }
    if context.out.is_json() {
        let mut object = Map::new();
        put_name(&mut object, "path", &at.path);
        object.insert("bytes".into(), json!(given.bytes));
        object.insert("records".into(), json!(given.records));
        return context.out.json(&Value::Object(object));
    }
    if context.args.quiet {
        return Ok(());
    }
    context.out.line(format!("appended {} records, {}", given.records, bytes(given.bytes)))
}

impl Given {
    /// The whole input.
    async fn run(&mut self, at: &RemotePath, unit: Unit) -> Result<()> {
        let (mut cutter, mut input) = (Cutter::new(unit), read_as_it_comes());
        while let Some(part) = input.recv().await {
            let whole = cutter.push(&part?)?;
            self.give(at, unit, &whole).await?;
        }
        let rest = cutter.end()?;
        self.give(at, unit, &rest).await
    }

    async fn give(&mut self, at: &RemotePath, unit: Unit, whole: &[u8]) -> Result<()> {
        let records: Vec<&[u8]> = match unit {
            Unit::Records(size) => whole.chunks(size).collect(),
            Unit::Any | Unit::Lines => whole.split_inclusive(|byte| *byte == b'\n').collect(),
        };
        for record in records {
            let ticket = self.appender.append(record).await.map_err(|e| e.named_for(at))?;
            self.tickets.push_back((ticket, record.len() as u64));
            while self.tickets.len() > TICKETS_MAX
                && let Some((ticket, bytes)) = self.tickets.pop_front()
            {
                ticket.done().await.map_err(|e| e.named_for(at))?;
                self.count(bytes);
            }
        }
        Ok(())
    }

    fn count(&mut self, bytes: u64) {
        self.records += 1;
        self.bytes += bytes;
    }
}
