//! Keeps what vendors' libraries print out of a program's output.

#![allow(unsafe_code, reason = "file descriptors are the process's")]

use std::fs::File;
use std::io;

/// The standard output as a file of its own; what is printed the usual way goes to standard error
/// from now on. Qualcomm's library prints a line when the process ends, in the midst of a
/// program's JSON.
///
/// # Errors
/// There is no standard output or error.
#[cfg(unix)]
pub fn own_stdout() -> io::Result<File> {
    use std::io::Write;
    use std::os::fd::AsFd;

    io::stdout().flush()?;
    let own = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    // SAFETY: both are numbers of descriptors that stay open; nothing is read or written in memory.
    let done = unsafe { libc::dup2(libc::STDERR_FILENO, libc::STDOUT_FILENO) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(own) }
}

/// Not done on this system.
///
/// # Errors
/// Always.
#[cfg(not(unix))]
pub fn own_stdout() -> io::Result<File> {
    Err(io::Error::from(io::ErrorKind::Unsupported))
}
