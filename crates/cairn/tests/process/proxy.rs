//! [`Proxy`]: carries the frames of connections to a process, or the records of TLS, and changes some of them: flips
//! bits, cuts connections in the middle, sends a frame twice, holds it back. What becomes of the n-th frame of the m-th
//! connection follows from the seed.
//!
//! Not here: what a cluster behind such proxies has to bear (`mutated`).
use crate::mount::seeds::Rng;
use cairn_wire::frame::{FRAME_MAGIC, FrameHeader, HEADER_LEN};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

/// What is done to a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    Flip,
    Cut,
    Repeat,
    Delay,
}

pub const MUTATIONS: [Mutation; 4] = [Mutation::Flip, Mutation::Cut, Mutation::Repeat, Mutation::Delay];
/// One of so many frames without much payload is changed; of others more are: far fewer of them go by.
const ONE_IN: u64 = 120;
const ONE_LARGE_IN: u64 = 10;
const LARGE: usize = 4096;
/// A frame is held back for so long at most: a leader is called gone meanwhile, or a node silent.
const DELAY_MAX_MS: u64 = 1500;

/// A record of TLS begins with its kind, from 20 to 24, and has its length at the end of its header.
const RECORD_HEADER: usize = 5;
/// The code of a frame on a connection that began with TLS.
const CODE: usize = 16;

/// What all proxies of a cluster share.
pub struct Mutations {
    seed: u64,
    /// How many are still to be made.
    left: AtomicI64,
    made: [AtomicU64; MUTATIONS.len()],
    connections: AtomicU64,
    ends: AtomicBool,
}

impl Mutations {
    /// None yet; the proxies of this seed only carry until they are [told](Self::go_on) how many to make.
    pub fn new(seed: u64) -> Arc<Mutations> {
        Arc::new(Mutations {
            seed,
            left: AtomicI64::new(0),
            made: Default::default(),
            connections: AtomicU64::new(0),
            ends: AtomicBool::new(false),
        })
    }
    /// From now on frames are changed, so many of them.
    pub fn go_on(&self, count: i64) {
        self.left.store(count, SeqCst);
    }
    /// Nothing is changed any more. True if all that was wanted was.
    pub fn stop(&self) -> bool {
        self.left.swap(0, SeqCst) <= 0
    }
    pub fn is_over(&self) -> bool {
        self.left.load(SeqCst) <= 0
    }
    /// How often what was done.
    pub fn made(&self) -> Vec<(Mutation, u64)> {
        MUTATIONS.into_iter().zip(&self.made).map(|(what, made)| (what, made.load(SeqCst))).collect()
    }
    fn next(&self, rng: &mut Rng, length: usize) -> Option<Mutation> {
        let hit = rng.one_in(if length > LARGE { ONE_LARGE_IN } else { ONE_IN });
        let which = rng.index(MUTATIONS.len());
        if !hit || self.left.fetch_sub(1, SeqCst) <= 0 {
            return None;
        }
        self.made[which].fetch_add(1, SeqCst);
        Some(MUTATIONS[which])
    }
}

/// Stands before one process for as long as it lives.
pub struct Proxy {
    address: SocketAddr,
    mutations: Arc<Mutations>,
}

impl Proxy {
    /// Listens at an address for those who want to reach another one.
    pub fn start(listen: &str, to: String, mutations: Arc<Mutations>) -> Proxy {
        let listener = TcpListener::bind(listen).expect("a free port");
        let address = listener.local_addr().expect("its address");
        let shared = mutations.clone();
        std::thread::spawn(move || {
            for accepted in listener.incoming() {
                if shared.ends.load(SeqCst) {
                    return;
                }
                // Nobody listens there: whoever connected is told so by the end of its connection.
                if let (Ok(near), Ok(far)) = (accepted, TcpStream::connect(&to)) {
                    carry(near, far, &shared);
                }
            }
        });
        Proxy { address, mutations }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.mutations.ends.store(true, SeqCst);
        let _wakes_it = TcpStream::connect(self.address);
    }
}

fn carry(near: TcpStream, far: TcpStream, mutations: &Arc<Mutations>) {
    let number = mutations.connections.fetch_add(1, SeqCst);
    let (Ok(near_too), Ok(far_too)) = (near.try_clone(), far.try_clone()) else { return };
    for (from, to, way) in [(near, far, 0), (far_too, near_too, 1)] {
        let _unbuffered = to.set_nodelay(true);
        let rng = Rng::new(mutations.seed ^ (number << 1 | way) << 20);
        let mutations = mutations.clone();
        std::thread::spawn(move || {
            let (mut from, mut to) = (from, to);
            let _ended = pump(&mut from, &mut to, rng, &mutations);
            let _both = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
        });
    }
}

/// The next frame or record; `secured`: a record came before.
fn next(from: &mut TcpStream, secured: &mut bool) -> io::Result<Vec<u8>> {
    let mut unit = vec![0; RECORD_HEADER];
    from.read_exact(&mut unit)?;
    let length = if (20..=24).contains(&unit[0]) {
        *secured = true;
        RECORD_HEADER + usize::from(u16::from_be_bytes([unit[3], unit[4]]))
    } else if unit[..4] == FRAME_MAGIC.to_le_bytes() {
        let mut header = [0; HEADER_LEN];
        header[..RECORD_HEADER].copy_from_slice(&unit);
        from.read_exact(&mut header[RECORD_HEADER..])?;
        unit = header.to_vec();
        let parsed = FrameHeader::decode(&header).map_err(io::Error::other)?;
        parsed.frame_len() + if *secured { CODE } else { 0 }
    } else {
        return Err(io::Error::other("neither a frame nor a record"));
    };
    let got = unit.len();
    unit.resize(length, 0);
    from.read_exact(&mut unit[got..])?;
    Ok(unit)
}

/// Carries frames and records until the connection ends, or is cut.
fn pump(from: &mut TcpStream, to: &mut TcpStream, mut rng: Rng, mutations: &Mutations) -> io::Result<()> {
    let mut secured = false;
    loop {
        let mut frame = next(from, &mut secured)?;
        match mutations.next(&mut rng, frame.len()) {
            None => to.write_all(&frame)?,
            Some(Mutation::Flip) => {
                for _ in 0..1 + rng.below(4) {
                    let at = rng.index(frame.len());
                    frame[at] ^= 1 << rng.below(8);
                }
                to.write_all(&frame)?;
            }
            Some(Mutation::Cut) => {
                let end = rng.index(frame.len());
                return to.write_all(&frame[..end]);
            }
            Some(Mutation::Repeat) => {
                to.write_all(&frame)?;
                to.write_all(&frame)?;
            }
            Some(Mutation::Delay) => {
                std::thread::sleep(Duration::from_millis(rng.below(DELAY_MAX_MS)));
                to.write_all(&frame)?;
            }
        }
    }
}
