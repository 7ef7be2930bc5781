//! `cairn fs append --record`: standard input as framed records, at the side of any number of other writers.
//!
//! Memory: what is read ahead, the window of the writer, and a note of each of [`TICKETS_MAX`] records.
use super::{Cutter, Unit, is_gone, told_of_removal};
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
use std::time::Duration;
use tokio::time::timeout;

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

/// While the input stands still it is looked at so often what of it is appended.
const LOOK_APART: Duration = Duration::from_millis(200);

/// What was given, and what of it is appended.
struct Given<'a> {
    context: &'a Context,
    at: RemotePath,
    appender: RecordAppender,
    level: RecordLevel,
    /// Of records that are not counted yet, in their order; none behind one that failed.
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
    let mut given = Given { context, at, appender, level, tickets: VecDeque::new(), records: 0, bytes: 0 };
    let outcome = given.run(unit).await;
    let flushed = given.appender.flush().await.map_err(|e| CliError::from(e.named_for(&given.at)));
    while let Some((ticket, bytes)) = given.tickets.pop_front() {
        let outcome = ticket.done().await;
        if given.count(outcome, bytes).is_err() {
            break;
        }
    }
    if let Err(error) = outcome.and(flushed) {
        // Of a file that is gone nothing is left.
        if !is_gone(&error) {
            context.plain_report().warn(&given.text());
        }
        return Err(told_of_removal(error, &given.at));
    }
    if context.out.is_json() {
        let mut object = Map::new();
        put_name(&mut object, "path", &given.at.path);
        object.insert("bytes".into(), json!(given.bytes));
        object.insert("records".into(), json!(given.records));
        return context.out.json(&Value::Object(object));
    }
    if context.args.quiet {
        return Ok(());
    }
    context.out.line(format!("appended {} records, {}", given.records, bytes(given.bytes)))
}

impl Given<'_> {
    /// The whole input.
    async fn run(&mut self, unit: Unit) -> Result<()> {
        let (mut cutter, mut input) = (Cutter::new(unit), read_as_it_comes());
        loop {
            let part = match timeout(LOOK_APART, input.recv()).await {
                Ok(Some(part)) => part,
                Ok(None) => break,
                Err(_) => {
                    self.look()?;
                    continue;
                }
            };
            let whole = cutter.push(&part?)?;
            self.give(unit, &whole).await?;
        }
        let rest = cutter.end()?;
        self.give(unit, &rest).await
    }

    async fn give(&mut self, unit: Unit, whole: &[u8]) -> Result<()> {
        let records: Vec<&[u8]> = match unit {
            Unit::Records(size) => whole.chunks(size).collect(),
            Unit::Any | Unit::Lines => whole.split_inclusive(|byte| *byte == b'\n').collect(),
        };
        for record in records {
            let ticket = self.appender.append(record).await.map_err(|e| e.named_for(&self.at))?;
            self.tickets.push_back((ticket, record.len() as u64));
            while self.tickets.len() > TICKETS_MAX
                && let Some((ticket, bytes)) = self.tickets.pop_front()
            {
                let outcome = ticket.done().await;
                self.count(outcome, bytes)?;
            }
        }
        self.look()
    }

    /// Counts what is appended by now, and notes what to say if a signal ends the command.
    fn look(&mut self) -> Result<()> {
        while let Some((ticket, bytes)) = self.tickets.front_mut()
            && let Some(outcome) = ticket.try_done()
        {
            let bytes = *bytes;
            self.tickets.pop_front();
            self.count(outcome, bytes)?;
        }
        self.context.note_interrupt(format!("{}; of what came later it is not known", self.text()));
        Ok(())
    }

    fn text(&self) -> String {
        let (first, at) = (format!("the first {} records of the input, {}", self.records, bytes(self.bytes)), &self.at);
        match self.level {
            RecordLevel::Visible => format!("{first}, are in {at}"),
            RecordLevel::Durable => {
                format!("{first}, are durable; readers of {at} see the last of them after some seconds")
            }
            RecordLevel::Memory => format!(
                "{first}, are with the servers; readers of {at} see the last of them after some seconds, unless all these servers stop before"
            ),
        }
    }

    /// Of those behind one that failed some may be appended, but the first ones end with it.
    fn count(&mut self, outcome: cairn_client::Result<()>, bytes: u64) -> Result<()> {
        if let Err(error) = outcome {
            self.tickets.clear();
            return Err(error.named_for(&self.at).into());
        }
        self.records += 1;
        self.bytes += bytes;
        Ok(())
    }
}
