//! Seats for x86-64: a turn costs some dozen instructions, and where the kernel does not allow one of them a small call
//! of the system, for the place of thread values.
//!
//! Each thread of the run is one of the system, which gives it its stack and thread values and then sleeps in [`park`];
//! the thread that began the run goes round on all their stacks. A thread that has come to its end is done with by its
//! own one of the system, which awakes for that.
//!
//! Invariants: [`park`] uses no stack while it sleeps, as that is used by then; who leaves for good is let go only
//! by who runs after it, when nobody is on its stack any more.

use std::arch::naked_asm;
use std::cell::Cell;
use std::ptr;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use crate::real;

/// The seat's own thread of the system has not come to sleep yet.
const COMING: u32 = 0;
/// It sleeps, and others may run on its stack.
const PARKED: u32 = 1;
/// It is to go on itself.
const RELEASED: u32 = 2;

/// See [`crate::seat`]. The order of the first three is known to the instructions below.
#[repr(C)]
pub struct Seat {
    /// Of the stack, where what else is to be restored lies.
    top: Cell<*mut u8>,
    /// The place of thread values.
    values: Cell<*mut u8>,
    state: AtomicU32,
    /// The number of its thread of the system.
    number: Cell<i32>,
}

impl Seat {
    /// Nobody's.
    pub fn new() -> Self {
        let nowhere = || Cell::new(ptr::null_mut());
        Self { top: nowhere(), values: nowhere(), state: AtomicU32::new(COMING), number: Cell::new(0) }
    }

    /// The calling thread is the one that goes round, and this is its seat.
    pub fn take(&self) {
        self.values.set(values());
        self.state.store(PARKED, SeqCst);
    }

    /// The calling thread sits down here until its turn.
    pub fn wait_first(&self) {
        self.values.set(values());
        self.number.set(real::os_thread());
        // SAFETY: the seat lives as long as the world, and the calling thread is nowhere else.
        unsafe { park(self) };
    }

    /// The thread of this seat lets that of another one go on, and comes back with its next turn.
    pub fn give_to(&self, next: &Seat) {
        while next.state.load(SeqCst) == COMING {
            real::give_way();
        }
        // SAFETY: the calling thread runs, so nobody else does; the next one is parked, so its stack and values are
        // there and nobody's.
        unsafe { if *BY_INSTRUCTION { turn(self, next) } else { turn_by_call(self, next) } };
    }

    /// The thread of this seat lets that of another one go on, for good. It comes back when it is let go.
    pub fn leave_to(&self, next: &Seat) {
        self.give_to(next);
    }

    /// Lets a thread that has left come to its end, and waits until the system has forgotten it.
    pub fn let_go(&self) {
        self.state.store(RELEASED, SeqCst);
        real::futex_wake(self.state.as_ptr());
        real::wait_gone(self.number.get());
    }
}

/// Leaves what a function keeps for its caller on the stack, and the top of that in the seat (rdi).
macro_rules! leave {
    () => {
        "push rbp\npush rbx\npush r12\npush r13\npush r14\npush r15\nmov [rdi], rsp"
    };
}

/// Takes it back from the stack, and goes on behind the call that left it.
macro_rules! come_back {
    () => {
        "pop r15\npop r14\npop r13\npop r12\npop rbx\npop rbp\nret"
    };
}

/// The place of the calling thread's values.
fn values() -> *mut u8 {
    let values: *mut u8;
    // SAFETY: the first word there is its own address, by the C library's convention for this processor.
    unsafe { std::arch::asm!("mov {}, fs:0", out(reg) values, options(nostack, readonly, preserves_flags)) };
    values
}

/// Whether a program may set the place of thread values itself.
static BY_INSTRUCTION: LazyLock<bool> = LazyLock::new(|| {
    // HWCAP2_FSGSBASE
    // SAFETY: it takes and gives numbers.
    unsafe { libc::getauxval(libc::AT_HWCAP2) & 2 != 0 }
});

/// Goes on in `to` as it was left, and leaves `from` so that it can be gone on with.
///
/// # Safety
/// The calling thread runs on the stack and the values of `from`; `to` was left, or is parked, and nobody is on it. The
/// program may set the place of thread values.
#[unsafe(naked)]
unsafe extern "C" fn turn(from: *const Seat, to: *const Seat) {
    naked_asm!(leave!(), "mov rsp, [rsi]", "mov rsi, [rsi + 8]", "wrfsbase rsi", come_back!())
}

/// The same, by the system.
///
/// # Safety
/// As for [`turn`], but for the last sentence.
#[unsafe(naked)]
unsafe extern "C" fn turn_by_call(from: *const Seat, to: *const Seat) {
    naked_asm!(
        leave!(),
        "mov rsp, [rsi]",
        // arch_prctl(ARCH_SET_FS, values)
        "mov rsi, [rsi + 8]",
        "mov edi, {set}",
        "mov eax, {call}",
        "syscall",
        come_back!(),
        set = const 0x1002,
        call = const libc::SYS_arch_prctl,
    )
}

/// Leaves the calling thread's stack and values in the seat, and sleeps until the seat is released; then goes on as the
/// seat was left last.
///
/// # Safety
/// The seat is the calling thread's, and lives as long as that sleeps.
#[unsafe(naked)]
unsafe extern "C" fn park(seat: *const Seat) {
    naked_asm!(
        leave!(),
        "mov rbx, rdi",
        "add rdi, 16",
        "mov dword ptr [rdi], {parked}",
        // futex(state, FUTEX_WAIT | FUTEX_PRIVATE_FLAG, PARKED, no limit)
        "2:",
        "mov esi, {wait}",
        "mov edx, {parked}",
        "xor r10d, r10d",
        "mov eax, {call}",
        "syscall",
        "cmp dword ptr [rdi], {parked}",
        "je 2b",
        "mov rsp, [rbx]",
        come_back!(),
        parked = const PARKED,
        wait = const libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
        call = const libc::SYS_futex,
    )
}
