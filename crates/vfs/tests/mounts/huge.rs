//! Files of the largest size with almost nothing in them: whatever is asked ends after a number of steps that what is
//! stored gives, not the size.
use crate::*;
use cairn_client::{Conversion, ConversionControl};
use cairn_vfs::{Seek, SetAttr};
use std::pin::pin;
use std::sync::mpsc;
use std::task::Poll;

/// Largest file that there is.
const LARGEST: u64 = i64::MAX as u64;
/// Most that an operation on a few extents takes: times that it is polled, and requests to servers.
const POLLS_MAX: u32 = 400;
const REQUESTS_MAX: u64 = 60;
/// Whoever is not done after this goes round in circles; only a failing test waits for it.
const FOR_EVER: Duration = Duration::from_secs(90);
const PUNCH: i32 = 0x02 | 0x01;
const ZERO: i32 = 0x10;

/// Runs a test on threads of its own: a loop that does not yield would hold up whoever looks at a clock.
fn ends<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send + 'static) {
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        runtime.expect("a runtime").block_on(test());
        tell.send(()).expect("somebody waits");
    });
    match told.recv_timeout(FOR_EVER) {
        Ok(()) => {}
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("an operation goes over a huge range step by step"),
        Err(mpsc::RecvTimeoutError::Disconnected) => panic!("the test failed; see above"),
    }
}

struct Scene {
    cluster: FakeCluster,
    vfs: Vfs,
}

impl Scene {
    async fn new() -> Scene {
        let cluster = cluster();
        let vfs = mount(&cluster).await;
        Scene { cluster, vfs }
    }
    /// One operation: what it answers, if it took no more steps than it may.
    async fn step<T>(&self, what: &str, work: impl Future<Output = T>) -> T {
        self.cluster.take_calls();
        let mut polls = 0;
        let mut work = pin!(work);
        let outcome = std::future::poll_fn(|context| {
            polls += 1;
            assert!(polls <= POLLS_MAX, "{what}: polled {polls} times");
            match work.as_mut().poll(context) {
                Poll::Ready(outcome) => Poll::Ready(outcome),
                Poll::Pending => Poll::Pending,
            }
        })
        .await;
        let calls = self.cluster.take_calls();
        let requests: u64 = calls.values().sum();
        assert!(requests <= REQUESTS_MAX, "{what}: {calls:?}");
        outcome
    }
    async fn size(&self, ino: u64, handle: Handle, size: u64) {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        self.step("setattr", self.vfs.setattr(&root(), ino, Some(handle), set)).await.expect("size");
    }
    async fn seek(&self, handle: Handle, from: u64, what: Seek) -> Option<u64> {
        self.step("lseek", self.vfs.lseek(handle, from, what)).await.ok()
    }
    async fn sync(&self, handle: Handle) {
        self.step("fsync", self.vfs.fsync(handle, false)).await.expect("synced");
    }
    /// A hole up to the largest size but for one byte at its end.
    async fn huge(&self, name: &str, layout: Option<&str>) -> (u64, Handle) {
        let (ino, handle) = create(&self.vfs, name, RDWR).await;
        if let Some(layout) = layout {
            close(&self.vfs, handle).await;
            let layout: cairn_types::Layout = layout.parse().expect("a layout");
            let request = cairn_client::changes::SetAttributes { layout: Some(layout.to_bits()), ..Default::default() };
            self.vfs.volume().setattr(ino, b"f", request).await.expect("the layout of an empty file");
            let handle = open(&self.vfs, ino, RDWR).await;
            self.size(ino, handle, LARGEST - 1).await;
            write(&self.vfs, handle, LARGEST - 1, b"x").await;
            return (ino, handle);
        }
        self.size(ino, handle, LARGEST - 1).await;
        write(&self.vfs, handle, LARGEST - 1, b"x").await;
        (ino, handle)
    }
}

async fn one_file(layout: Option<&'static str>) {
    let scene = Scene::new().await;
    let vfs = &scene.vfs;
    let (ino, handle) = scene.huge("huge", layout).await;
    for stored in [false, true] {
        for from in [0, 1 << 40, 1 << 62] {
            assert_eq!(scene.seek(handle, from, Seek::Data).await, Some(LARGEST - 1), "stored: {stored}");
            assert_eq!(scene.seek(handle, from, Seek::Hole).await, Some(from));
        }
        assert_eq!(scene.seek(handle, LARGEST - 1, Seek::Hole).await, Some(LARGEST));
        scene.sync(handle).await;
    }
    let middle = scene.step("read", vfs.read(handle, 1 << 61, 1 << 20)).await.expect("read").concat();
    assert!(middle.len() == 1 << 20 && middle.iter().all(|byte| *byte == 0));
    // Far apart, in one flush.
    for at in [0, 1 << 20, 1 << 45, 1 << 61] {
        write(vfs, handle, at, &[7; 5000]).await;
    }
    scene.sync(handle).await;
    assert_eq!(scene.seek(handle, 5000, Seek::Data).await, Some(1 << 20));
    assert_eq!(scene.seek(handle, 1 << 20, Seek::Hole).await, Some((1 << 20) + 5000));
    scene.step("punch", vfs.fallocate(handle, PUNCH, (1 << 30, LARGEST - (1 << 31)), &[])).await.expect("punched");
    assert_eq!(scene.seek(handle, 1 << 21, Seek::Data).await, Some(LARGEST - 1));
    scene.step("zero", vfs.fallocate(handle, ZERO, (0, LARGEST), &[])).await.expect("zeroed");
    assert_eq!(scene.seek(handle, 0, Seek::Data).await, None);
    for size in [1, LARGEST, 1 << 62, 0] {
        scene.size(ino, handle, size).await;
    }
    let refused = scene.step("allocate", vfs.fallocate(handle, 0, (0, LARGEST), &[])).await;
    assert_eq!(refused.map_err(|error| error.errno), Err(28), "it does not fit");
    scene.step("close", close(vfs, handle)).await;
}

/// Any user would hang the whole mount with one lseek.
#[test]
fn a_huge_hole_is_one_step() {
    ends(|| async {
        one_file(None).await;
        one_file(Some("rs-3-2/4k")).await;
    });
}

/// A copy of a file that is nearly all hole would never end, or fill the target with zeros.
#[test]
fn a_huge_hole_is_copied_as_one() {
    ends(|| async {
        let scene = Scene::new().await;
        let vfs = &scene.vfs;
        let (_, source) = scene.huge("source", None).await;
        scene.sync(source).await;
        let (ino, target) = create(vfs, "target", RDWR).await;
        // Blocks that cannot be shared: the offsets differ.
        let copied = scene.step("copy", vfs.copy_file_range((source, 1), (target, 0), LARGEST)).await.expect("copied");
        assert_eq!(copied, LARGEST - 1);
        assert_eq!(scene.seek(target, 0, Seek::Data).await, Some(LARGEST - 2));
        write(vfs, target, 1 << 50, &[9; 8192]).await;
        scene.sync(target).await;
        // Where the target has something it becomes a hole, too.
        let copied =
            scene.step("copy over", vfs.copy_file_range((source, 1), (target, 0), LARGEST)).await.expect("copied");
        assert_eq!(copied, LARGEST - 1);
        assert_eq!(scene.seek(target, 0, Seek::Data).await, Some(LARGEST - 2));
        assert_eq!(read(vfs, target, LARGEST - 3, 10).await, [0, b'x']);
        // What can be shared is.
        scene.size(ino, target, 0).await;
        let copied = scene.step("share", vfs.copy_file_range((source, 0), (target, 0), LARGEST)).await.expect("copied");
        assert_eq!(copied, LARGEST);
        assert_eq!(scene.seek(target, 0, Seek::Data).await, Some(LARGEST - 1));
        close(vfs, source).await;
        close(vfs, target).await;
    });
}

/// Giving a file of mostly hole another layout would read zeros for ever.
#[test]
fn a_huge_hole_is_converted_as_one() {
    ends(|| async {
        let scene = Scene::new().await;
        let (ino, handle) = scene.huge("f", None).await;
        close(&scene.vfs, handle).await;
        let (control, layout) = (ConversionControl::default(), "rs-3-2/4k".parse().expect("a layout"));
        let convert = scene.vfs.volume().convert(ino, b"f", layout, &control);
        let done = scene.step("convert", convert).await.expect("converted");
        assert!(!matches!(done, Conversion::Stopped), "{done:?}");
        let handle = open(&scene.vfs, ino, RDWR).await;
        assert_eq!(scene.seek(handle, 0, Seek::Data).await, Some(LARGEST - 1));
        assert_eq!(read(&scene.vfs, handle, LARGEST - 2, 10).await, [0, b'x']);
        close(&scene.vfs, handle).await;
    });
}
