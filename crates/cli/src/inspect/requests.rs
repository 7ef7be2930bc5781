//! A file of a node's request log: how much of what it was asked, how large and how slow; with `--verbose` every
//! request.
//!
//! Requests and answers are joined within the file. Memory: what of a file's requests has no answer yet, and its
//! connections.
use super::Subject;
use super::printer::Printer;
use crate::error::Result;
use crate::human::{bytes, utc_time};
use crate::table::{Align, Table};
use cairn_client::operations::operation_name;
use cairn_format::request_log::{
    REQUEST_BATCH_HEADER, REQUEST_BATCH_MAX, REQUEST_LOG_HEADER, RequestEvent, RequestLogHeader, RequestRecord,
    split_batch, split_record,
};
use cairn_types::ErrorCode;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};

/// Powers of two, of nanoseconds and of bytes.
const CLASSES: usize = 64;

/// How many values were below each power of two.
#[derive(Clone)]
struct Histogram {
    classes: [u64; CLASSES],
    count: u64,
    sum: u64,
    max: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { classes: [0; CLASSES], count: 0, sum: 0, max: 0 }
    }
}

impl Histogram {
    fn add(&mut self, value: u64) {
        // A class has the values above the half of its bound, and the bound.
        let class = value.saturating_sub(1).checked_ilog2().map_or(0, |log| log as usize + 1);
        self.classes[class.min(CLASSES - 1)] += 1;
        self.count += 1;
        self.sum = self.sum.saturating_add(value);
        self.max = self.max.max(value);
    }
    /// A bound that such a part of the values does not exceed.
    fn quantile(&self, part: f64) -> u64 {
        let wanted = (self.count as f64 * part).ceil() as u64;
        let mut below = 0;
        for (class, count) in self.classes.iter().enumerate() {
            below += count;
            if below >= wanted.max(1) {
                return (1u64 << class).min(self.max);
            }
        }
        self.max
    }
    /// Bound and count of each class that has any.
    fn classes(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let any = self.classes.iter().enumerate().filter(|(_, count)| **count > 0);
        any.map(|(class, count)| (1u64 << class, *count))
    }
}

#[derive(Default)]
struct Operation {
    requests: u64,
    errors: BTreeMap<u16, u64>,
    took: Histogram,
    /// Data that came or went, of those that had any.
    data: Histogram,
}

struct Asked {
    time: u64,
    trace_id: u64,
    bytes: u64,
}

#[derive(Default)]
struct Report {
    connections: HashMap<u64, String>,
    asked: HashMap<(u64, u64), Asked>,
    operations: BTreeMap<u16, Operation>,
    first: Option<u64>,
    last: u64,
    dropped: u64,
}

pub fn inspect(subject: &Subject, printer: &mut Printer) -> Result<()> {
    let header = match RequestLogHeader::decode(&subject.read(0, REQUEST_LOG_HEADER as u64)?) {
        Ok(header) => header,
        Err(error) => return printer.problem(0, &error.to_string()),
    };
    let text = format!("request log, begun {}, {}", utc_time(header.begun), bytes(subject.length));
    printer.head("request_log", &text, json!({ "begun_ns": header.begun, "bytes": subject.length }))?;
    let (mut report, mut offset) = (Report::default(), REQUEST_LOG_HEADER as u64);
    while offset < subject.length {
        let part = subject.read(offset, (REQUEST_BATCH_HEADER + REQUEST_BATCH_MAX) as u64)?;
        let (records, dropped, rest) = match split_batch(&part) {
            Ok(batch) => batch,
            Err(error) => {
                let text =
                    format!("at offset {offset}: {error}; a batch that a crash cut off, or that is being written");
                printer.item("torn", &text, json!({ "offset": offset, "text": error.to_string() }))?;
                break;
            }
        };
        report.dropped += u64::from(dropped);
        let mut records = records;
        while !records.is_empty() {
            match split_record(records) {
                Ok((record, after)) => {
                    report.add(record, printer)?;
                    records = after;
                }
                Err(error) => {
                    printer.problem(offset, &format!("a record of this batch: {error}"))?;
                    break;
                }
            }
        }
        offset += (part.len() - rest.len()) as u64;
    }
    report.print(printer)
}

fn name(opcode: u16) -> String {
    operation_name(opcode).map_or_else(|| format!("{opcode:#06x}"), str::to_owned)
}

fn error_name(code: u16) -> String {
    ErrorCode::from_code(code).map_or_else(|| format!("error {code}"), |known| format!("{known:?}"))
}

/// Nanoseconds for people.
fn duration(ns: u64) -> String {
    match ns {
        0..1_000_000 => format!("{} us", ns / 1000),
        1_000_000..1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => format!("{:.2} s", ns as f64 / 1e9),
    }
}

impl Report {
    fn add(&mut self, record: RequestRecord<'_>, printer: &Printer) -> Result<()> {
        let RequestRecord { connection, time, event } = record;
        self.first.get_or_insert(time);
        self.last = self.last.max(time);
        match event {
            RequestEvent::Connection { peer_kind, node, address } => {
                let kind = ["?", "client", "server", "tool"].get(peer_kind as usize).unwrap_or(&"?");
                let peer = if node == 0 { format!("{kind} {address}") } else { format!("{kind} n{node} {address}") };
                self.connections.insert(connection, peer);
            }
            RequestEvent::Request { id, trace_id, opcode, payload, length, .. } => {
                let operation = self.operations.entry(opcode).or_default();
                operation.requests += 1;
                if payload > 0 {
                    operation.data.add(payload.into());
                }
                let bytes = u64::from(payload) + u64::from(length);
                self.asked.insert((connection, id), Asked { time, trace_id, bytes });
            }
            RequestEvent::Answer { id, opcode, error, payload, length } => {
                let operation = self.operations.entry(opcode).or_default();
                if payload > 0 {
                    operation.data.add(payload.into());
                }
                if error != 0 {
                    *operation.errors.entry(error).or_default() += 1;
                }
                let asked = self.asked.remove(&(connection, id));
                if let Some(asked) = &asked {
                    operation.took.add(time.saturating_sub(asked.time));
                }
                if printer.is_verbose() {
                    let answer = u64::from(payload) + u64::from(length);
                    self.print_one((connection, time, opcode, error), asked, answer, printer)?;
                }
            }
        }
        Ok(())
    }

    fn print_one(
        &self,
        (connection, time, opcode, error): (u64, u64, u16, u16),
        asked: Option<Asked>,
        answer: u64,
        printer: &Printer,
    ) -> Result<()> {
        let peer = self.connections.get(&connection).map_or("?", String::as_str);
        let outcome = if error == 0 { "ok".to_owned() } else { error_name(error) };
        let (begun, trace, bytes) = asked.map_or((None, 0, 0), |asked| (Some(asked.time), asked.trace_id, asked.bytes));
        let took = begun.map(|begun| time.saturating_sub(begun));
        let text = format!(
            "{}  {trace:016x}  {:<16} {bytes:>8} B in {answer:>8} B out {:>9}  {outcome}  from {peer}",
            utc_time(begun.unwrap_or(time)),
            name(opcode),
            took.map_or_else(|| "?".into(), duration),
        );
        let fields = json!({
            "time_ns": begun.unwrap_or(time), "trace": format!("{trace:016x}"), "operation": name(opcode), "bytes_in": bytes,
            "bytes_out": answer, "took_ns": took, "error": (error != 0).then(|| outcome.clone()), "peer": peer,
        });
        printer.item("request", &text, fields)
    }

    fn print(&self, printer: &Printer) -> Result<()> {
        let span = self.last.saturating_sub(self.first.unwrap_or(self.last));
        let total: u64 = self.operations.values().map(|operation| operation.requests).sum();
        let mut columns = vec![("OPERATION", Align::Left)];
        let numbers = ["REQUESTS", "ERRORS", "P50", "P99", "MAX", "DATA", "DATA P50"];
        columns.extend(numbers.map(|name| (name, Align::Right)));
        let mut table = Table::new(&columns);
        let mut fields = Vec::new();
        for (opcode, operation) in &self.operations {
            let errors: u64 = operation.errors.values().sum();
            let took = |part: f64| {
                if operation.took.count == 0 { "-".into() } else { duration(operation.took.quantile(part)) }
            };
            table.row(vec![
                name(*opcode),
                operation.requests.to_string(),
                errors.to_string(),
                took(0.5),
                took(0.99),
                took(1.0),
                bytes(operation.data.sum),
                if operation.data.count == 0 { "-".into() } else { bytes(operation.data.quantile(0.5)) },
            ]);
            fields.push(operation.to_json(*opcode));
        }
        let mut text = table.lines().join("\n");
        for (opcode, operation) in self.operations.iter().filter(|(_, operation)| operation.data.count > 0) {
            let sizes: Vec<String> =
                operation.data.classes().map(|(bound, count)| format!("{} {count}", bytes(bound))).collect();
            text.push_str(&format!("\ndata of {}, up to: {}", name(*opcode), sizes.join(", ")));
        }
        for (opcode, operation) in self.operations.iter().filter(|(_, operation)| !operation.errors.is_empty()) {
            let errors: Vec<String> =
                operation.errors.iter().map(|(code, count)| format!("{} {count}", error_name(*code))).collect();
            text.push_str(&format!("\nerrors of {}: {}", name(*opcode), errors.join(", ")));
        }
        text.push_str(&format!(
            "\n{total} requests in {}, {} of them without an answer in this file, records dropped {} times",
            duration(span),
            self.asked.len(),
            self.dropped
        ));
        let end = json!({
            "requests": total, "span_ns": span, "unanswered": self.asked.len(), "dropped": self.dropped, "operations": fields,
        });
        printer.item("end", &text, end)
    }
}

impl Operation {
    fn to_json(&self, opcode: u16) -> Value {
        let classes = |histogram: &Histogram| -> Vec<Value> {
            histogram.classes().map(|(bound, count)| json!({ "up_to": bound, "count": count })).collect()
        };
        let errors: BTreeMap<String, u64> =
            self.errors.iter().map(|(code, count)| (error_name(*code), *count)).collect();
        json!({
            "operation": name(opcode), "requests": self.requests, "errors": errors, "took_ns": classes(&self.took),
            "took_max_ns": self.took.max, "data_bytes": self.data.sum, "data": classes(&self.data),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Half of the requests would seem slower than they are, or the slowest faster.
    #[test]
    fn quantiles_are_bounds() {
        let mut histogram = Histogram::default();
        [0, 1, 2, 3, 4, 5, 4096, 4097].into_iter().for_each(|value| histogram.add(value));
        assert_eq!(histogram.classes().collect::<Vec<_>>(), [(1, 2), (2, 1), (4, 2), (8, 1), (4096, 1), (8192, 1)]);
        assert_eq!((histogram.quantile(0.5), histogram.quantile(0.9), histogram.quantile(1.0)), (4, 4097, 4097));
        assert_eq!((histogram.count, histogram.max, histogram.sum), (8, 4097, 8208));
        assert_eq!(Histogram::default().quantile(0.5), 0);
        histogram.add(u64::MAX);
        assert_eq!(histogram.quantile(1.0), 1 << 63, "the last class has no bound above");
    }
}
