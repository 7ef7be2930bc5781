//! [`Epoll`]: which descriptors somebody looks at, and which of them have news.
//!
//! As in the kernel: an edge comes with every change (not only with the first), a report names all that is ready at its
//! moment, and with `EPOLLET` nothing is said twice without a change between.

use std::collections::{BTreeMap, VecDeque};

use crate::files::{Id, Kind, Object};
use crate::trace::What;
use crate::world::{Tid, World};

const ALWAYS: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;

/// What somebody wants to hear of a descriptor.
#[derive(Debug, Clone, Copy)]
struct Interest {
    events: u32,
    data: u64,
    id: Id,
    /// It is in the list of news.
    marked: bool,
}

/// An epoll.
#[derive(Debug, Default)]
pub struct Epoll {
    interests: BTreeMap<i32, Interest>,
    news: VecDeque<i32>,
    waiters: Vec<Tid>,
}

/// One report.
#[derive(Debug, Clone, Copy)]
pub struct Report {
    pub events: u32,
    pub data: u64,
}

/// What is ready now.
pub fn readiness(object: &Object) -> u32 {
    let ready = match &object.kind {
        Kind::Epoll(epoll) => {
            if epoll.news.is_empty() {
                0
            } else {
                libc::EPOLLIN
            }
        }
        Kind::Counter(0) => libc::EPOLLOUT,
        Kind::Counter(_) => libc::EPOLLIN | libc::EPOLLOUT,
        Kind::Fresh => libc::EPOLLOUT | libc::EPOLLHUP,
        Kind::Listener(listener) if listener.backlog.is_empty() => 0,
        Kind::Listener(_) => libc::EPOLLIN,
        Kind::Stream(stream) => stream.readiness(),
    };
    ready as u32
}

impl World {
    fn epoll(&mut self, id: Id) -> Option<&mut Epoll> {
        match &mut self.files.get(id)?.kind {
            Kind::Epoll(epoll) => Some(epoll),
            _ => None,
        }
    }

    /// `epoll_ctl` of one of our descriptors; an error is an errno.
    pub fn control(&mut self, epoll_fd: i32, op: i32, fd: i32, events: u32, data: u64) -> Result<(), i32> {
        let epoll_id = self.files.id(epoll_fd).ok_or(libc::EBADF)?;
        let Some(id) = self.files.id(fd) else {
            // A descriptor of the kernel (such as the pipe of signals): nothing ever happens to it here.
            return Ok(());
        };
        let epoll = self.epoll(epoll_id).ok_or(libc::EINVAL)?;
        let known = epoll.interests.contains_key(&fd);
        match op {
            libc::EPOLL_CTL_ADD if known => return Err(libc::EEXIST),
            libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL if !known => return Err(libc::ENOENT),
            libc::EPOLL_CTL_DEL => {
                self.forget(epoll_id, fd);
                let object = self.files.get(id).ok_or(libc::EBADF)?;
                object.watchers.retain(|watcher| *watcher != (epoll_id, fd));
                return Ok(());
            }
            _ => {}
        }
        let marked = epoll.interests.get(&fd).is_some_and(|interest| interest.marked);
        epoll.interests.insert(fd, Interest { events, data, id, marked });
        let object = self.files.get(id).ok_or(libc::EBADF)?;
        if !known {
            object.watchers.push((epoll_id, fd));
        }
        if readiness(object) & (events | ALWAYS) != 0 {
            self.mark(epoll_id, fd);
        }
        Ok(())
    }

    fn forget(&mut self, epoll: Id, fd: i32) {
        if let Some(epoll) = self.epoll(epoll) {
            epoll.interests.remove(&fd);
            epoll.news.retain(|other| *other != fd);
        }
    }

    /// A descriptor is closed: nobody looks at it any more.
    pub fn unwatch(&mut self, fd: i32) {
        let Some(id) = self.files.id(fd) else { return };
        let Some(object) = self.files.get(id) else { return };
        let (gone, kept): (Vec<_>, Vec<_>) = object.watchers.iter().partition(|(_, watched)| *watched == fd);
        object.watchers = kept;
        gone.into_iter().for_each(|(epoll, fd): (Id, i32)| self.forget(epoll, fd));
    }

    /// There is news of a descriptor.
    pub fn mark(&mut self, id: Id, fd: i32) {
        let Some(epoll) = self.epoll(id) else { return };
        let Some(interest) = epoll.interests.get_mut(&fd) else { return };
        if !interest.marked {
            interest.marked = true;
            epoll.news.push_back(fd);
        }
        while let Some(tid) = self.epoll(id).and_then(|epoll| epoll.waiters.pop()) {
            self.wake(tid);
        }
    }

    /// What there is to report, at most so many.
    pub fn reports(&mut self, id: Id, most: usize) -> Result<Vec<Report>, i32> {
        let mut out = Vec::new();
        let mut again = Vec::new();
        // News of several descriptors come in any order.
        let turn = self.network.below(4) as usize;
        let epoll = self.epoll(id).ok_or(libc::EINVAL)?;
        let turn = turn.min(epoll.news.len());
        epoll.news.rotate_left(turn);
        while out.len() < most {
            let Some(fd) = self.epoll(id).and_then(|epoll| epoll.news.pop_front()) else { break };
            let interest = self.epoll(id).and_then(|epoll| epoll.interests.get_mut(&fd));
            let Some(Interest { events, data, id: of, marked }) = interest else { continue };
            *marked = false;
            let (events, data, of) = (*events, *data, *of);
            let ready = self.files.get(of).map_or(0, |object| readiness(object)) & (events | ALWAYS);
            if ready == 0 {
                continue;
            }
            out.push(Report { events: ready, data });
            if events & libc::EPOLLET as u32 == 0 {
                again.push(fd);
            }
        }
        for fd in again {
            self.mark(id, fd);
        }
        self.note(What::EpollReady, id, out.len() as u64);
        Ok(out)
    }

    /// The running thread is woken by the next news.
    pub fn await_news(&mut self, id: Id) {
        let running = self.running;
        if let Some(epoll) = self.epoll(id) {
            epoll.waiters.push(running);
        }
    }

    /// It does not wait any more.
    pub fn await_no_news(&mut self, id: Id) {
        let running = self.running;
        if let Some(epoll) = self.epoll(id) {
            epoll.waiters.retain(|tid| *tid != running);
        }
    }
}
