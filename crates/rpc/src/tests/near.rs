//! Clients of several runtimes: whose thread a call's outcome comes to.
use super::*;
use crate::client::near::{belong_to, hand_on, handed_on};
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::task::{Context, Wake, Waker};

/// The thread that learns the outcome of a call made now.
fn outcome_thread(peer: &crate::Peer, options: CallOptions) -> String {
    let (tell, told) = mpsc::channel();
    peer.call_then(ECHO, &note(1), (), options, move |outcome| {
        tell.send((outcome.is_ok(), std::thread::current().name().unwrap_or_default().to_owned())).unwrap();
    });
    let (good, name) = told.recv_timeout(LONG).unwrap();
    assert!(good);
    name
}

/// Each answer would take a hop to another thread.
#[test]
fn answers_come_to_the_runtime_of_the_asker() {
    let (server, _) = serve_with(ServerConfig { threads: 1, ..config() });
    let (mut handles, mut stops) = (Vec::new(), Vec::new());
    for number in 0..3 {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        handles.push(runtime.handle().clone());
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        stops.push(stop);
        let thread = std::thread::Builder::new().name(format!("lane-{number}"));
        let _runs_until_stopped = thread.spawn(move || runtime.block_on(stopped)).unwrap();
    }
    let client = Client::with_runtimes(&handles, patient(), Identity::client());
    let peer = client.peer(&addr(&server));
    std::thread::scope(|scope| {
        for number in 0..3 {
            let peer = &peer;
            scope.spawn(move || {
                belong_to(number);
                for spread in 0..4 {
                    assert_eq!(outcome_thread(peer, long().spread(spread)), format!("lane-{number}"));
                }
                for _ in 0..2 {
                    assert_eq!(outcome_thread(peer, long().stream(7)), format!("lane-{number}"), "of a stream as well");
                }
            });
        }
    });
    assert_eq!(outcome_thread(&peer, long()), "lane-0", "threads that belong to none");
    assert_eq!(outcome_thread(&peer, long().stream(7)), "lane-1", "there a stream has one connection");
    assert_eq!(server.stats().connections_open.load(Ordering::Relaxed), 3);
}

#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A thread that only begins operations would wake the one that goes on with them twice each; or an operation would
/// stand still where it was begun.
#[test]
fn what_is_handed_on_goes_on_elsewhere() {
    let polls = |mut work: std::pin::Pin<&mut dyn Future<Output = ()>>, woken: &Arc<Woken>| {
        work.as_mut().poll(&mut Context::from_waker(&Waker::from(woken.clone()))).is_ready()
    };
    let woken = Arc::new(Woken::default());
    assert!(polls(pin!(handed_on()), &woken), "this thread hands nothing on");
    let begun = std::thread::scope(|scope| {
        let begin = || {
            hand_on();
            let mut begun: std::pin::Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(handed_on());
            assert!(!polls(begun.as_mut(), &woken));
            begun
        };
        scope.spawn(begin).join().unwrap()
    });
    assert_eq!(woken.0.load(Ordering::Relaxed), 1, "whoever collects futures polls it again");
    assert!(polls(pin!(begun), &woken));
}
