//! A small client of striped chunks: makes shards, writes them to members, reads them back.

use cairn_erasure::Codec;
use cairn_format::crc_table::{decode_crcs, encode_crcs};
use cairn_rpc::{CallError, Payload};
use cairn_types::{BLOCK_SIZE, Scheme, crc32c};
use cairn_wire::Opcode;
use cairn_wire::data::{AppendRequest, AppendResponse, ChunkHeader, ReadRequest, ReadResponse};

use super::cluster::{Cluster, pattern};

/// Bytes of one append.
const PIECE: usize = 1 << 20;

/// What all members of a group are to hold of one chunk.
pub(super) struct Shards {
    pub(super) bytes: Vec<Vec<u8>>,
    k: usize,
}

impl Shards {
    /// Data from a seed, and its parity.
    pub(super) fn new(scheme: Scheme, seed: u64, length: usize) -> Self {
        let codec = Codec::for_scheme(scheme).expect("an erasure scheme");
        let data: Vec<Vec<u8>> = (0..codec.k() as u64).map(|j| pattern(seed * 100 + j, length)).collect();
        let mut parity = vec![vec![0; length]; codec.m()];
        codec.encode(&data, &mut parity).expect("encoded");
        Self { bytes: data.into_iter().chain(parity).collect(), k: codec.k() }
    }

    /// The checksums of the rows of a range, as they go to parity shards.
    pub(super) fn row_crcs(&self, from: usize, to: usize) -> Vec<u32> {
        let mut crcs = Vec::new();
        for at in (from..to).step_by(BLOCK_SIZE) {
            crcs.extend(self.bytes[..self.k].iter().map(|shard| crc32c(&shard[at..at + BLOCK_SIZE])));
        }
        crcs
    }

    /// The append of a range to a member.
    pub(super) fn request(&self, cluster: &Cluster, i: usize, index: u32, from: usize, to: usize) -> AppendRequest {
        let mut row_crcs = Vec::new();
        if i >= self.k {
            encode_crcs(&self.row_crcs(from, to), &mut row_crcs);
        }
        let request = cluster.append_request(i, &[], index, from as u64, &self.bytes[i][from..to]);
        AppendRequest { row_crcs, ..request }
    }

    /// Writes a range to one member.
    pub(super) fn write(
        &self,
        cluster: &Cluster,
        i: usize,
        index: u32,
        from: usize,
        to: usize,
    ) -> Result<Option<AppendResponse>, CallError> {
        let mut last = None;
        for at in (from..to).step_by(PIECE) {
            let end = (at + PIECE).min(to);
            let request = self.request(cluster, i, index, at, end);
            last = Some(cluster.send(i, &request, &self.bytes[i][at..end])?);
        }
        Ok(last)
    }

    /// Writes everything to these members and makes it durable.
    pub(super) fn put(&self, cluster: &Cluster, members: &[usize], index: u32) {
        let length = self.bytes[0].len();
        for &i in members {
            self.write(cluster, i, index, 0, length).expect("appended");
            let synced = cluster.sync(i, &[], index).expect("synced");
            assert_eq!((synced.durable_length, synced.members.len()), (length as u64, 1));
        }
    }

    /// Holds what a member has of a range against what it should; with parity also the checksums of the rows.
    pub(super) fn check(&self, cluster: &Cluster, i: usize, index: u32, from: usize, to: usize) {
        for at in (from..to).step_by(PIECE) {
            let end = (at + PIECE).min(to);
            let found = read_shard(cluster, i, index, at, end - at);
            let (bytes, row_crcs) = found.unwrap_or_else(|error| panic!("member {i}, {at}..{end}: {error}"));
            assert!(bytes == self.bytes[i][at..end], "member {i}, {at}..{end} differs");
            let rows = if i >= self.k { self.row_crcs(at, end) } else { Vec::new() };
            assert!(row_crcs == rows, "member {i}, {at}..{end}: other checksums of rows");
        }
    }

    /// The same for all of it.
    pub(super) fn check_all(&self, cluster: &Cluster, i: usize, index: u32) {
        self.check(cluster, i, index, 0, self.bytes[0].len());
    }
}

/// Reads blocks, verifies them, and returns them with the checksums of their rows.
pub(super) fn read_shard(
    cluster: &Cluster,
    i: usize,
    index: u32,
    at: usize,
    length: usize,
) -> Result<(Vec<u8>, Vec<u32>), CallError> {
    read_as(cluster, i, 0, index, at, length)
}

/// Reads what member `i` has, meaning this shard (0: whichever; else the shard and one).
pub(super) fn read_as(
    cluster: &Cluster,
    i: usize,
    shard: u32,
    index: u32,
    at: usize,
    length: usize,
) -> Result<(Vec<u8>, Vec<u32>), CallError> {
    let request = ReadRequest {
        shard,
        chunk: Some(ChunkHeader { epoch: 0, ..cluster.header(i, index) }),
        offset: at as u64,
        length: length as u32,
        row_crcs: true,
        ..ReadRequest::default()
    };
    let (answer, payload): (ReadResponse, _) = cluster.call(i, Opcode::Read, &request, Payload::None)?;
    let payload = payload.expect("whole blocks");
    let crcs = decode_crcs(&answer.crcs).expect("whole checksums");
    assert_eq!((payload.len(), crcs.len()), (length, length / BLOCK_SIZE));
    assert!(payload.chunks(BLOCK_SIZE).zip(&crcs).all(|(block, crc)| crc32c(block) == *crc), "a bad block was served");
    Ok((payload.to_vec(), decode_crcs(&answer.row_crcs).expect("whole checksums")))
}
