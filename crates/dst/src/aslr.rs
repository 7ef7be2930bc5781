//! The same addresses in every run: the program starts itself once more, without chance in its layout.

use std::os::unix::process::CommandExt;

/// What the kernel is told to leave alone.
const NO_RANDOM_LAYOUT: libc::c_ulong = libc::ADDR_NO_RANDOMIZE as libc::c_ulong;

/// Starts the program anew with a fixed layout, unless it has one. Where that is forbidden it goes on as it is: the
/// layout matters only to what depends on addresses.
pub fn fix_layout() {
    // SAFETY: it takes and gives numbers; this one only asks.
    let persona = unsafe { libc::personality(0xffff_ffff) };
    if persona < 0 || persona as libc::c_ulong & NO_RANDOM_LAYOUT != 0 {
        return;
    }
    // SAFETY: as above.
    if unsafe { libc::personality(persona as libc::c_ulong | NO_RANDOM_LAYOUT) } < 0 {
        return;
    }
    let Ok(program) = std::env::current_exe() else { return };
    // Only comes back with an error, and then the run goes on with the layout that it has.
    let _stayed = std::process::Command::new(program).args(std::env::args_os().skip(1)).exec();
}
