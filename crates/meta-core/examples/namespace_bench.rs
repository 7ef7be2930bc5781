//! Speed and size of the namespace, on one core:
//! `cargo run --release -p cairn-meta-core --example namespace_bench [files …]`.
//!
//! For each number of files (default 10,000, 2,000,000 and 10,000,000): creates with one extent and a 16-byte name,
//! 1,000 to a directory, in random order over the directories open at a time; then lookups, getattrs, listings with
//! attributes, publishes, unlinks; memory for each file; a checkpoint written and loaded. Requests are encoded before
//! the clock starts, decoding is part of what is measured. Numbers hold for the machine and moment they are taken on.

// It measures time and asks the system for its memory.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use cairn_meta_core::{AppliedAt, Namespace, NamespaceBuilder, NamespaceConfig};
use cairn_types::{Layout, PartitionId, VolumeId, WallTime};
use cairn_wire::Opcode;
use cairn_wire::common::{Credentials, Extent};
use cairn_wire::meta::*;
use prost::Message;
use std::hint::black_box;
use std::time::Instant;

const SESSION: u64 = 77;
const PER_DIRECTORY: usize = 1000;
/// Directories that are filled at the same time.
const OPEN_DIRECTORIES: usize = 64;
/// Requests that are encoded ahead.
const BATCH: usize = 5_000;

struct Bench {
    namespace: Namespace,
    index: u64,
    sequence: u64,
    answer: Vec<u8>,
    random: u64,
}

impl Bench {
    fn new() -> Self {
        let config = NamespaceConfig::new(VolumeId(1), PartitionId(1), Layout::replicated(3));
        Bench { namespace: Namespace::new(&config), index: 0, sequence: 0, answer: Vec::new(), random: 1 }
    }

    /// A small generator (SplitMix64), so that runs repeat.
    fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn header(&mut self, write: bool) -> Option<MetaHeader> {
        self.sequence += u64::from(write);
        let who = Some(Credentials { uid: 1000, gid: 1000, groups: vec![4, 24, 1000] });
        let sequence = if write { self.sequence } else { 0 };
        Some(MetaHeader { volume: 1, partition: 1, session: SESSION, slot: 3, sequence, who })
    }

    fn apply(&mut self, opcode: Opcode, request: &[u8]) {
        self.answer.clear();
        self.index += 1;
        let at =
            AppliedAt { index: self.index, term: 1, time: WallTime(1_790_000_000_000_000_000 + self.index * 1000) };
        self.namespace.apply(at, opcode, request, &mut self.answer).expect("the operation succeeds");
    }

    fn mutations(&mut self, requests: &[(Opcode, Vec<u8>)], times: &mut Batches) {
        let start = Instant::now();
        for (opcode, request) in requests {
            self.apply(*opcode, request);
        }
        times.add(start, requests.len());
    }

    fn reads(&mut self, opcode: Opcode, requests: &[Vec<u8>]) -> Batches {
        let (mut out, mut times) = (Vec::new(), Batches::default());
        for batch in requests.chunks(5000) {
            let start = Instant::now();
            for request in batch {
                out.clear();
                self.namespace.read(opcode, request, &mut out).expect("the read succeeds");
                black_box(&out);
            }
            times.add(start, batch.len());
        }
        times
    }

    fn mkdir(&mut self, name: String) -> u64 {
        let header = self.header(true);
        let request = MkdirRequest { header, parent: 1, name: name.into_bytes(), mode: 0o755, ..Default::default() };
        self.apply(Opcode::Mkdir, &request.encode_to_vec());
        let answer = AttributesResponse::decode(self.answer.as_slice()).expect("an answer");
        answer.attributes.expect("attributes").inode
    }

    fn create(&mut self, parent: u64, number: u64) -> (Opcode, Vec<u8>) {
        let length = 1 + self.random() % 200_000;
        let extent = Extent {
            file_offset: 0,
            length,
            pg: 1 + (number % 300) as u32,
            index: (number / 300) as u32,
            chunk_offset: self.random() % 16_000 * 4096,
            flags: 0,
        };
        let request = CreateRequest {
            header: self.header(true),
            parent,
            name: format!("file-{number:011}").into_bytes(),
            mode: 0o644,
            exclusive: true,
            size: length,
            extents: vec![extent],
            written_by: SESSION,
            mtime_ns: 1_780_000_000_000_000_000 + self.random() % (1 << 50),
            ..Default::default()
        };
        (Opcode::Create, request.encode_to_vec())
    }
}

/// Times of several batches of the same work. Other work on the machine only makes them longer, so the best one says
/// what the work costs, and the mean what it cost here and now.
#[derive(Default)]
struct Batches {
    nanos: f64,
    operations: u64,
    best: f64,
}

impl Batches {
    fn add(&mut self, start: Instant, operations: usize) {
        let nanos = start.elapsed().as_nanos() as f64;
        let each = nanos / operations as f64;
        self.best = if self.operations == 0 { each } else { self.best.min(each) };
        self.nanos += nanos;
        self.operations += operations as u64;
    }
}

impl std::fmt::Display for Batches {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.0} ns (best batch {:.0})", self.nanos / self.operations.max(1) as f64, self.best)
    }
}

/// Resident memory of the process in bytes.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}

fn fill(bench: &mut Bench, files: usize) -> (Vec<u64>, Batches) {
    let mut directories = Vec::new();
    let mut open: Vec<(u64, usize)> = Vec::new();
    let (mut times, mut made) = (Batches::default(), 0);
    while made < files {
        let mut batch = Vec::new();
        // Directories are opened between batches, so a batch may fill some of them beyond their share.
        while open.len() < OPEN_DIRECTORIES.min((files - made).div_ceil(PER_DIRECTORY)) {
            let directory = bench.mkdir(format!("directory-{:06}", directories.len()));
            directories.push(directory);
            open.push((directory, 0));
        }
        while batch.len() < BATCH && made < files {
            let at = bench.random() as usize % open.len();
            batch.push((open[at].0, made as u64));
            open[at].1 += 1;
            made += 1;
        }
        open.retain(|(_, filled)| *filled < PER_DIRECTORY);
        let requests: Vec<_> = batch.into_iter().map(|(parent, number)| bench.create(parent, number)).collect();
        bench.mutations(&requests, &mut times);
    }
    (directories, times)
}

fn measure(files: usize) {
    let before = resident();
    let mut bench = Bench::new();
    let (directories, create) = fill(&mut bench, files);
    let tree = bench.namespace.memory_bytes() as f64 / files as f64;
    let rss = resident().saturating_sub(before) as f64 / files as f64;
    println!("{files} files: create {create}; memory a file: counted {tree:.1} B, resident {rss:.1} B");

    // What is there, by listing; the listing is measured too.
    let mut names: Vec<(u64, Vec<u8>, u64)> = Vec::new();
    let (mut listings, mut out) = (Batches::default(), Vec::new());
    for directory in &directories {
        let header = bench.header(false);
        let request = ReaddirRequest {
            header,
            inode: *directory,
            after: vec![],
            count_max: 4096,
            attributes: true,
            shards: false,
        };
        let request = request.encode_to_vec();
        out.clear();
        let start = Instant::now();
        bench.namespace.read(Opcode::Readdir, &request, &mut out).expect("a listing");
        listings.add(start, PER_DIRECTORY.min(files));
        let answer = ReaddirResponse::decode(out.as_slice()).expect("an answer");
        if names.len() < 200_000 {
            names.extend(answer.entries.into_iter().map(|e| (*directory, e.name, e.inode)));
        } else {
            let some = answer.entries.into_iter().step_by(97);
            names.extend(some.map(|e| (*directory, e.name, e.inode)));
        }
    }
    println!("  readdir with attributes, an entry: {listings}");

    let picked: Vec<(u64, Vec<u8>, u64)> =
        (0..200_000).map(|_| names[bench.random() as usize % names.len()].clone()).collect();
    let header = bench.header(false);
    let encode = |(parent, name, _): &(u64, Vec<u8>, u64)| {
        LookupRequest { header: header.clone(), parent: *parent, name: name.clone() }.encode_to_vec()
    };
    let lookups: Vec<Vec<u8>> = picked.iter().map(encode).collect();
    let encode =
        |(_, _, inode): &(u64, Vec<u8>, u64)| GetattrRequest { header: header.clone(), inode: *inode }.encode_to_vec();
    let getattrs: Vec<Vec<u8>> = picked.iter().map(encode).collect();
    let lookup = bench.reads(Opcode::Lookup, &lookups);
    let getattr = bench.reads(Opcode::Getattr, &getattrs);
    println!("  lookup {lookup}, getattr {getattr}, over files picked at random");

    mutate(&mut bench, &names);
    checkpoint(&bench.namespace);
}

fn mutate(bench: &mut Bench, names: &[(u64, Vec<u8>, u64)]) {
    let count = 100_000.min(names.len() / 2);
    let mut publishes = Vec::with_capacity(count);
    for i in 0..count {
        let inode = names[i * (names.len() / count)].2;
        let extent = Extent { file_offset: 0, length: 9000, pg: 1, index: 1 << 20, chunk_offset: 0, flags: 0 };
        let header = bench.header(true);
        let request =
            PublishRequest { header, inode, extents: vec![extent], written_by: SESSION, ..Default::default() };
        publishes.push((Opcode::Publish, request.encode_to_vec()));
    }
    let (mut publish, mut unlink) = (Batches::default(), Batches::default());
    publishes.chunks(5000).for_each(|batch| bench.mutations(batch, &mut publish));
    let mut unlinks = Vec::with_capacity(count);
    for i in 0..count {
        let (parent, name, _) = names[i * (names.len() / count)].clone();
        let header = bench.header(true);
        unlinks.push((Opcode::Unlink, UnlinkRequest { header, parent, name }.encode_to_vec()));
    }
    unlinks.chunks(5000).for_each(|batch| bench.mutations(batch, &mut unlink));
    println!("  publish over what is there {publish}, unlink {unlink}");
}

fn checkpoint(namespace: &Namespace) {
    let start = Instant::now();
    let snapshot = namespace.snapshot();
    let taken = start.elapsed();
    let start = Instant::now();
    let pages: Vec<Vec<u8>> = snapshot.pages(256 << 10).collect();
    let (bytes, wrote) = (pages.iter().map(Vec::len).sum::<usize>(), start.elapsed());
    let start = Instant::now();
    let mut builder = NamespaceBuilder::new();
    for page in &pages {
        builder.push_page(page).expect("a page");
    }
    let loaded = builder.finish().expect("a checkpoint");
    let load = start.elapsed();
    assert_eq!(loaded.counters(), namespace.counters());
    let rate = |time: std::time::Duration| bytes as f64 / time.as_secs_f64() / 1e9;
    println!(
        "  snapshot {taken:?}; checkpoint {:.0} MB: pages {wrote:?} ({:.2} GB/s), load {load:?} ({:.2} GB/s)",
        bytes as f64 / 1e6,
        rate(wrote),
        rate(load)
    );
}

fn main() {
    let counts: Vec<usize> = std::env::args().skip(1).filter_map(|text| text.parse().ok()).collect();
    let counts = if counts.is_empty() { vec![10_000, 2_000_000, 10_000_000] } else { counts };
    for files in counts {
        measure(files);
    }
}
