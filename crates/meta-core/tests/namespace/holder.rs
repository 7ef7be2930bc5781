//! The holder of a delegation for tests: its own namespace, and the items that wait to be stored.
use crate::driver::{Answer, Driver, ROOT, user};
use cairn_meta_core::Namespace;
use cairn_types::{PartitionId, VolumeId, WallTime, crc32c};
use cairn_wire::Opcode;
use cairn_wire::error::WireError;
use cairn_wire::meta::*;
use prost::Message;
use std::collections::VecDeque;
use std::ops::RangeInclusive;

/// As high as any partition's.
pub const ASK: DelegationAsk = DelegationAsk { ids: 8, token: 77, level: 29 };

pub struct Holder {
    /// For reading.
    pub part: Driver,
    pub number: u64,
    pub session: u64,
    /// Items that may not have been stored, and number of the first.
    pub queue: VecDeque<BatchItem>,
    pub first: u64,
    /// The last number of an inode that it has.
    pub ids_to: u64,
    ranges: Vec<RangeInclusive<u64>>,
}

impl Driver {
    /// A driver of a partition with delegations.
    pub fn with_delegations() -> Driver {
        let mut d = Driver::new();
        d.set_feature_level(29);
        d
    }

    /// Makes a directory with a question for a delegation.
    pub fn mkdir_asking(&mut self, parent: u64, name: &str, ask: DelegationAsk) -> Answer<AttributesResponse> {
        let header = self.next();
        let request =
            MkdirRequest { header, parent, name: name.into(), mode: 0o755, ask: Some(ask), ..Default::default() };
        self.mutate(Opcode::Mkdir, &request)
    }

    /// A directory that this session leads.
    pub fn lead(&mut self, parent: u64, name: &str) -> Holder {
        let answer = self.mkdir_asking(parent, name, ASK).unwrap();
        Holder::new(&answer.delegation.expect("it is given"), self.session)
    }

    pub fn batch(&mut self, request: BatchRequest) -> Answer<BatchResponse> {
        let header = self.next();
        self.mutate(Opcode::Batch, &BatchRequest { header, ..request })
    }

    pub fn end_delegations(&mut self, numbers: &[u64]) -> Answer<()> {
        let header = self.next();
        let request = EndDelegationsRequest { header, numbers: numbers.to_vec() };
        self.log(Opcode::EndDelegations, request.encode_to_vec()).map(|_| ())
    }
}

impl Holder {
    pub fn new(told: &Delegation, session: u64) -> Holder {
        let part = Namespace::of_delegation(VolumeId(1), PartitionId(1), session, told).expect("it is sound");
        let mut part = Driver::on(part);
        part.session = session;
        let ranges = vec![told.number..=told.last];
        Holder { part, number: told.number, session, queue: VecDeque::new(), first: 0, ids_to: told.last, ranges }
    }

    pub fn covers(&self, inode: u64) -> bool {
        self.ranges.iter().any(|range| range.contains(&inode))
    }

    /// Executes an operation here; what was done waits to be stored.
    pub fn run(&mut self, now: u64, opcode: Opcode, request: Vec<u8>) -> Answer<Vec<u8>> {
        self.try_to_run(now, opcode, request).map_err(|error| error.code)
    }

    /// The same with all of the error.
    pub fn try_to_run(&mut self, now: u64, opcode: Opcode, request: Vec<u8>) -> Result<Vec<u8>, WireError> {
        let mut answer = Vec::new();
        self.part.namespace.run_own_item(opcode, WallTime(now), &request, &mut answer)?;
        let (opcode, expect) = (u32::from(opcode.code()), crc32c(&answer));
        self.queue.push_back(BatchItem { opcode, time_ns: now, request, expect });
        Ok(answer)
    }

    fn attributes(&mut self, now: u64, opcode: Opcode, request: &impl Message) -> Answer<Attributes> {
        let answer = self.run(now, opcode, request.encode_to_vec())?;
        let answer = AttributesResponse::decode(answer.as_slice()).expect("the answer is protobuf");
        assert_eq!(answer.delegation, None, "none within another");
        Ok(answer.attributes.expect("attributes are answered"))
    }

    /// What items have of a header.
    pub fn header() -> Option<MetaHeader> {
        Some(MetaHeader { who: Some(user(0, 0, &[])), ..MetaHeader::default() })
    }

    pub fn mkdir(&mut self, now: u64, parent: u64, name: &str) -> Answer<Attributes> {
        let (header, name) = (Self::header(), name.into());
        let request = MkdirRequest { header, parent, name, mode: 0o755, ask: Some(ASK), ..Default::default() };
        self.attributes(now, Opcode::Mkdir, &request)
    }

    pub fn create(&mut self, now: u64, parent: u64, name: &str) -> Answer<Attributes> {
        let (header, name) = (Self::header(), name.into());
        let request = CreateRequest { header, parent, name, mode: 0o644, exclusive: true, ..Default::default() };
        self.attributes(now, Opcode::Create, &request)
    }

    /// Items from one on, so many; without a header.
    pub fn items(&self, from: u64, count: usize) -> BatchRequest {
        let skip = (from - self.first) as usize;
        let items = self.queue.iter().skip(skip).take(count).cloned().collect();
        BatchRequest { delegation: self.number, from, items, ids_to: self.ids_to, ..Default::default() }
    }

    /// All items that wait.
    pub fn all(&self) -> BatchRequest {
        self.items(self.first, usize::MAX)
    }

    /// What the partition answers to a batch. What it stored waits no longer.
    pub fn answered(&mut self, answer: &BatchResponse) {
        let stored = answer.next.saturating_sub(self.first).min(self.queue.len() as u64);
        self.queue.drain(..stored as usize);
        self.first += stored;
        if answer.first > self.ids_to && self.part.namespace.add_own_ids(answer.first..=answer.last) {
            self.ids_to = answer.last;
            self.ranges.push(answer.first..=answer.last);
        }
    }

    /// Stores all, and ends it.
    pub fn end(mut self, partition: &mut Driver) {
        partition.session = self.session;
        let answer = partition.batch(BatchRequest { end: true, ..self.all() }).unwrap();
        assert_eq!((answer.error, answer.ended), (0, true));
        self.answered(&answer);
        assert!(self.queue.is_empty());
    }
}

/// The directory that all tests lead.
pub fn lead(d: &mut Driver) -> Holder {
    d.lead(ROOT, "led")
}
