//! [`Plan`]: what is to be done when, out of request logs, which have messages of the wire.
//!
//! Memory: 32 bytes for each operation of the logs.
use super::between;
use crate::report::latencies;
use anyhow::Context;
use cairn_format::request_log::{
    REQUEST_BATCH_HEADER, REQUEST_LOG_HEADER, RequestEvent, RequestLogHeader, RequestRecord, batch_length, split_batch,
    split_record,
};
use cairn_wire::Opcode;
use cairn_wire::data::ReadRequest;
use hdrhistogram::Histogram;
use prost::Message;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What an operation does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    Read,
    Append,
    Overwrite,
    Sync,
    Stat,
    List,
    Create,
    Mkdir,
    Rename,
    Remove,
    Change,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Append => "append",
            Self::Overwrite => "overwrite",
            Self::Sync => "sync",
            Self::Stat => "stat",
            Self::List => "list",
            Self::Create => "create",
            Self::Mkdir => "mkdir",
            Self::Rename => "rename",
            Self::Remove => "remove",
            Self::Change => "change",
        }
    }

    /// `None`: it comes with another operation, or is none of a client's work.
    fn of(opcode: Opcode) -> Option<Kind> {
        use Opcode as O;
        Some(match opcode {
            O::Read => Self::Read,
            O::Append => Self::Append,
            O::Overwrite => Self::Overwrite,
            O::Sync => Self::Sync,
            O::Lookup | O::Getattr | O::GetattrMany | O::Resolve | O::Open | O::Access | O::GetExtents => Self::Stat,
            O::Readdir => Self::List,
            O::Create | O::CreateUnnamed | O::Symlink | O::Link => Self::Create,
            O::Mkdir => Self::Mkdir,
            O::Rename => Self::Rename,
            O::Unlink | O::Rmdir | O::RemoveTree => Self::Remove,
            O::Setattr | O::PublishAttributes | O::SetXattr | O::RemoveXattr => Self::Change,
            _ => return None,
        })
    }
}

/// One operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// From the first one on.
    pub after: Duration,
    pub kind: Kind,
    /// Read or written.
    pub bytes: u32,
}

#[derive(Default)]
pub struct Plan {
    pub steps: Vec<Step>,
    /// Requests of clients that are not replayed.
    pub left_out: u64,
    /// What servers took, by kind, in microseconds.
    took: BTreeMap<Kind, Vec<u32>>,
}

impl Plan {
    pub fn read(files: &[PathBuf]) -> anyhow::Result<Plan> {
        let (mut plan, mut timed) = (Plan::default(), Vec::new());
        for file in files {
            plan.add(file, &mut timed).with_context(|| format!("reading the request log {}", file.display()))?;
        }
        timed.sort_unstable_by_key(|(time, ..)| *time);
        let first = timed.first().map_or(0, |(time, ..)| *time);
        let step =
            |(time, kind, bytes): &(u64, Kind, u32)| Step { after: between(first, *time), kind: *kind, bytes: *bytes };
        plan.steps = timed.iter().map(step).collect();
        Ok(plan)
    }

    pub fn span(&self) -> Duration {
        self.steps.last().map_or(Duration::ZERO, |step| step.after)
    }

    pub fn logged(&self) -> BTreeMap<Kind, Histogram<u64>> {
        let histogram = |values: &Vec<u32>| {
            let mut histogram = latencies();
            values.iter().for_each(|value| histogram.saturating_record(u64::from(*value)));
            histogram
        };
        self.took.iter().map(|(kind, values)| (*kind, histogram(values))).collect()
    }

    fn add(&mut self, file: &Path, timed: &mut Vec<(u64, Kind, u32)>) -> anyhow::Result<()> {
        let mut file = BufReader::new(File::open(file)?);
        let mut part = Vec::new();
        read_up_to(&mut file, REQUEST_LOG_HEADER, &mut part)?;
        RequestLogHeader::decode(&part)?;
        let mut open = HashMap::new();
        loop {
            // The last batch may be in the middle of being written.
            part.clear();
            read_up_to(&mut file, REQUEST_BATCH_HEADER, &mut part)?;
            let Ok(length) = batch_length(&part) else { return Ok(()) };
            read_up_to(&mut file, length, &mut part)?;
            let Ok((mut records, ..)) = split_batch(&part) else { return Ok(()) };
            while !records.is_empty() {
                let (record, next) = split_record(records)?;
                self.take(record, &mut open, timed);
                records = next;
            }
        }
    }

    fn take(
        &mut self,
        record: RequestRecord<'_>,
        open: &mut HashMap<(u64, u64), (u64, Kind)>,
        timed: &mut Vec<(u64, Kind, u32)>,
    ) {
        let RequestRecord { connection, time, event } = record;
        match event {
            RequestEvent::Request { id, opcode, of_server: false, payload, message, .. } => {
                let Some(kind) = Opcode::from_code(opcode).and_then(Kind::of) else {
                    self.left_out += 1;
                    return;
                };
                let bytes = match kind {
                    Kind::Read => ReadRequest::decode(message).map_or(0, |asked| asked.length),
                    _ => payload,
                };
                open.insert((connection, id), (time, kind));
                timed.push((time, kind, bytes));
            }
            RequestEvent::Answer { id, .. } => {
                if let Some((asked, kind)) = open.remove(&(connection, id)) {
                    let took = u32::try_from(between(asked, time).as_micros()).unwrap_or(u32::MAX);
                    self.took.entry(kind).or_default().push(took);
                }
            }
            RequestEvent::Request { .. } | RequestEvent::Connection { .. } => {}
        }
    }
}

/// Appends so many bytes, or what there is.
fn read_up_to(file: &mut impl Read, length: usize, into: &mut Vec<u8>) -> std::io::Result<()> {
    file.take(length as u64).read_to_end(into).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_format::request_log::encode_batch_header;

    fn asks(id: u64, opcode: Opcode, of_server: bool, payload: u32, message: &[u8]) -> RequestEvent<'_> {
        let (opcode, length) = (opcode.code(), message.len() as u32);
        RequestEvent::Request { id, trace_id: 1, opcode, oneway: false, of_server, payload, length, message }
    }

    fn log(events: Vec<(u64, RequestEvent<'_>)>) -> Vec<u8> {
        let mut records = Vec::new();
        for (time, event) in events {
            RequestRecord { connection: 1, time: time * 1_000_000, event }.encode(&mut records);
        }
        [&RequestLogHeader { begun: 1 }.encode()[..], &encode_batch_header(&records, 0), &records].concat()
    }

    /// Other operations, sizes or moments would be replayed than there were, or one operation once for each copy.
    #[test]
    fn logs_of_servers_become_one_plan() {
        let dir = tempfile::tempdir().expect("directory");
        let read = ReadRequest { length: 70_000, ..ReadRequest::default() }.encode_to_vec();
        let answer = |id| RequestEvent::Answer { id, opcode: 1, error: 0, payload: 0, length: 0 };
        let data = log(vec![
            (30, asks(1, Opcode::Append, false, 4096, &[])),
            (31, asks(2, Opcode::Append, true, 4096, &[])),
            (34, answer(1)),
            (50, asks(3, Opcode::Read, false, 0, &read)),
            (51, asks(4, Opcode::Ping, false, 0, &[])),
        ]);
        let meta =
            log(vec![(10, asks(1, Opcode::Create, false, 0, &[])), (60, asks(2, Opcode::Unlink, false, 0, &[]))]);
        let files = [dir.path().join("data"), dir.path().join("meta")];
        std::fs::write(&files[0], &data).expect("file");
        // Its end is being written.
        std::fs::write(&files[1], [&meta[..], b"RQB1 and so on, longer than its header"].concat()).expect("file");
        let plan = Plan::read(&files).expect("read");
        let step = |ms, kind, bytes| Step { after: Duration::from_millis(ms), kind, bytes };
        let expected = [
            step(0, Kind::Create, 0),
            step(20, Kind::Append, 4096),
            step(40, Kind::Read, 70_000),
            step(50, Kind::Remove, 0),
        ];
        assert_eq!((plan.steps.as_slice(), plan.left_out), (&expected[..], 1));
        assert_eq!(plan.span(), Duration::from_millis(50));
        let logged = plan.logged();
        assert_eq!((logged.len(), logged[&Kind::Append].max()), (1, 4001), "in classes");
        std::fs::write(&files[1], b"no log").expect("file");
        assert!(Plan::read(&files).is_err());
    }
}
