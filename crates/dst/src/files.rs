//! [`Files`]: descriptors of the run: numbers that the kernel reserves for us, and what stands behind them.
//!
//! Invariant: [`is_ours`] is right for every number at any moment, without entering the world. An object goes with its
//! last number. Not here: what objects do.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::epoll::Epoll;
use crate::real;
use crate::tcp::Stream;
use crate::world::{Tid, World};

/// An object's number, never used again; none has 0.
pub type Id = u64;
/// Descriptors below this can be ours.
const FD_MAX: usize = 1 << 16;

static OURS: [AtomicBool; FD_MAX] = [const { AtomicBool::new(false) }; FD_MAX];

/// Whether a descriptor belongs to the run.
pub fn is_ours(fd: i32) -> bool {
    usize::try_from(fd).is_ok_and(|fd| fd < FD_MAX && OURS[fd].load(Relaxed))
}

/// What a descriptor stands for.
pub enum Kind {
    Epoll(Epoll),
    Counter(u64),
    /// A socket that is neither connected nor listens.
    Fresh,
    Listener(Listener),
    Stream(Box<Stream>),
}

/// A socket that listens.
#[derive(Default)]
pub struct Listener {
    /// Connections that nobody has accepted yet.
    pub backlog: VecDeque<Id>,
}

/// An object with what all of them have.
pub struct Object {
    pub kind: Kind,
    pub nonblocking: bool,
    pub descriptors: u32,
    /// Address and port that it is bound to; 0 while it is not.
    pub local: (u32, u16),
    pub host: usize,
    /// Which epolls look at it, and as which descriptor.
    pub watchers: Vec<(Id, i32)>,
    /// Threads that wait for it to be ready.
    pub waiters: Vec<Tid>,
}

/// All of them.
#[derive(Default)]
pub struct Files {
    /// By descriptor; 0 is none.
    numbers: Vec<Id>,
    /// By number, the first at 1.
    objects: Vec<Option<Box<Object>>>,
    /// Those that listen.
    listening: Vec<Id>,
    next_port: u16,
    /// A descriptor of the kernel that stands for nothing; others are made from it.
    spare: Option<i32>,
}

impl Files {
    /// A new object without a descriptor.
    pub fn make(&mut self, kind: Kind, nonblocking: bool, host: usize) -> Id {
        let object = Object {
            kind,
            nonblocking,
            descriptors: 0,
            local: (0, 0),
            host,
            watchers: Vec::new(),
            waiters: Vec::new(),
        };
        if self.objects.is_empty() {
            self.objects.push(None);
        }
        self.objects.push(Some(Box::new(object)));
        self.objects.len() as Id - 1
    }

    /// Makes a fresh socket one that listens. False: it is not fresh.
    pub fn listen(&mut self, id: Id) -> bool {
        match self.get(id) {
            Some(object) if matches!(object.kind, Kind::Fresh) => object.kind = Kind::Listener(Listener::default()),
            _ => return false,
        }
        self.listening.push(id);
        true
    }

    /// Takes an object away.
    pub fn remove(&mut self, id: Id) -> Option<Object> {
        let object = self.objects.get_mut(id as usize)?.take()?;
        if matches!(object.kind, Kind::Listener(_)) {
            self.listening.retain(|listener| *listener != id);
        }
        Some(*object)
    }

    /// All that there are.
    pub fn all(&self) -> impl Iterator<Item = (Id, &Object)> {
        self.objects.iter().enumerate().filter_map(|(id, object)| Some((id as Id, &**object.as_ref()?)))
    }

    /// Gives an object a descriptor.
    pub fn number(&mut self, id: Id) -> i32 {
        let spare = *self.spare.get_or_insert_with(|| {
            // SAFETY: a path that ends in a zero byte.
            unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) }
        });
        // SAFETY: it takes numbers.
        let fd = unsafe { real::fcntl(spare, libc::F_DUPFD_CLOEXEC, 0) };
        let Some(slot) = usize::try_from(fd).ok().and_then(|fd| OURS.get(fd)) else {
            crate::report::fatal("there is no free descriptor");
        };
        slot.store(true, Relaxed);
        if self.numbers.len() <= fd as usize {
            self.numbers.resize(fd as usize + 1, 0);
        }
        self.numbers[fd as usize] = id;
        if let Some(object) = self.get(id) {
            object.descriptors += 1;
        }
        fd
    }

    /// What stands behind a descriptor.
    pub fn id(&self, fd: i32) -> Option<Id> {
        self.numbers.get(usize::try_from(fd).ok()?).copied().filter(|id| *id != 0)
    }

    /// The object.
    pub fn get(&mut self, id: Id) -> Option<&mut Object> {
        self.objects.get_mut(id as usize)?.as_deref_mut()
    }

    /// The object, if it is a connection.
    pub fn stream(&mut self, id: Id) -> Option<&mut Stream> {
        match &mut self.get(id)?.kind {
            Kind::Stream(stream) => Some(stream),
            _ => None,
        }
    }

    /// A port that nobody listens on.
    pub fn free_port(&mut self) -> u16 {
        loop {
            self.next_port = if (20_000..60_000).contains(&self.next_port) { self.next_port + 1 } else { 20_000 };
            let port = self.next_port;
            if !self.listeners().any(|(_, local)| local.1 == port) {
                return port;
            }
        }
    }

    fn listeners(&self) -> impl Iterator<Item = (Id, (u32, u16))> {
        let local = |id: &Id| Some((*id, self.objects.get(*id as usize)?.as_ref()?.local));
        self.listening.iter().filter_map(local)
    }

    /// Who listens there.
    pub fn listener(&self, address: u32, port: u16) -> Option<Id> {
        let listens = |local: (u32, u16)| local.1 == port && (local.0 == address || local.0 == 0);
        self.listeners().find(|(_, local)| listens(*local)).map(|(id, _)| id)
    }

    /// Takes a descriptor away. The object, if that was its last.
    fn release(&mut self, fd: i32) -> Option<(Id, Object)> {
        let id = self.id(fd)?;
        self.numbers[fd as usize] = 0;
        OURS[fd as usize].store(false, Relaxed);
        // SAFETY: the number was reserved by `number` and belongs to nobody else.
        unsafe { real::close(fd) };
        let object = self.get(id)?;
        object.descriptors -= 1;
        match object.descriptors {
            0 => self.remove(id).map(|object| (id, object)),
            _ => None,
        }
    }
}

impl World {
    /// Closes a descriptor. False: there is none.
    pub fn close(&mut self, fd: i32) -> bool {
        let Some(id) = self.files.id(fd) else { return false };
        self.unwatch(fd);
        if let Some((id, object)) = self.files.release(fd) {
            self.let_go(id, object);
        }
        self.note(crate::trace::What::Close, fd as u64, id);
        true
    }

    /// What an object's end means to others.
    pub fn let_go(&mut self, id: Id, object: Object) {
        match object.kind {
            Kind::Stream(stream) => self.hang_up(id, *stream),
            Kind::Listener(listener) => {
                for waiting in listener.backlog {
                    if let Some(object) = self.files.remove(waiting) {
                        self.let_go(waiting, object);
                    }
                }
            }
            Kind::Epoll(_) | Kind::Counter(_) | Kind::Fresh => {}
        }
    }

    /// Something about an object has changed: who waits for it looks again.
    pub fn edge(&mut self, id: Id) {
        let Some(object) = self.files.get(id) else { return };
        let waiters = std::mem::take(&mut object.waiters);
        waiters.into_iter().for_each(|tid| self.wake(tid));
        let mut at = 0;
        // Nobody is added or taken out meanwhile.
        while let Some((epoll, fd)) = self.files.get(id).and_then(|object| object.watchers.get(at).copied()) {
            self.mark(epoll, fd);
            at += 1;
        }
    }
}
