//! How large the terminal is to which something is printed.

use std::os::fd::{AsRawFd, BorrowedFd};

/// Columns and rows; `None` where it is no terminal, or does not say.
pub fn size(of: BorrowedFd<'_>) -> Option<(usize, usize)> {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the request writes one `winsize`, which is ours.
    let asked = unsafe { libc::ioctl(of.as_raw_fd(), libc::TIOCGWINSZ, &raw mut size) };
    let known = asked == 0 && size.ws_col > 0 && size.ws_row > 0;
    known.then(|| (usize::from(size.ws_col), usize::from(size.ws_row)))
}
