//! The runtimes that operations of a mount run on: one thread each, with connections to the servers of its own.
//!
//! A reader thread hands what it cannot answer at once to one lane. There the request is sent, its answer arrives, and
//! the kernel is answered, all on the lane's thread: with few requests under way every hop to another thread would cost
//! more than the rest. Invariant: a lane never waits for another one.
use std::io;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// All lanes of a mount. They end when this is dropped; what they still do is not waited for.
pub struct Lanes {
    handles: Vec<Handle>,
    _stop: Vec<oneshot::Sender<()>>,
}

impl Lanes {
    pub fn start(count: usize) -> io::Result<Lanes> {
        let (mut handles, mut stops) = (Vec::with_capacity(count), Vec::with_capacity(count));
        for number in 0..count {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            handles.push(runtime.handle().clone());
            let (stop, stopped) = oneshot::channel::<()>();
            stops.push(stop);
            std::thread::Builder::new().name(format!("mount-{number}")).spawn(move || {
                cairn_client::belong_to(number);
                // An error means that the lanes were dropped, which is the signal.
                let _ended = runtime.block_on(stopped);
                runtime.shutdown_background();
            })?;
        }
        Ok(Lanes { handles, _stop: stops })
    }
    pub fn handles(&self) -> &[Handle] {
        &self.handles
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    /// A lane that waits would hold up the others.
    #[test]
    fn lanes_run_side_by_side() {
        let lanes = Lanes::start(2).expect("threads");
        let (tell, told) = mpsc::channel();
        let (go, wait) = mpsc::channel::<()>();
        lanes.handles()[0].spawn(async move { wait.recv_timeout(Duration::from_secs(120)).is_ok() });
        lanes.handles()[1].spawn(async move { tell.send(std::thread::current().name().map(str::to_owned)) });
        let name = told.recv_timeout(Duration::from_secs(120)).expect("the other lane runs");
        assert_eq!(name.as_deref(), Some("mount-1"));
        drop(go);
    }
}
