//! What a hostile front-end does on its socket.

use super::*;

/// Any message, with numbers and sizes that are often nearly right.
pub(super) fn any_message(
    frontend: &Frontend,
    noise: &mut Noise,
    fds: &[RawFd],
) -> std::io::Result<usize> {
    let request = noise.below(42) as u32;
    let few = |noise: &mut Noise| match noise.below(6) {
        0 => noise.next(),
        1 => u64::MAX,
        2 => 1 << noise.below(64),
        3 => USER + noise.below(BYTES as usize) as u64,
        _ => noise.below(4) as u64,
    };
    let mut list: Vec<u64> = (0..noise.below(6)).map(|_| few(noise)).collect();
    if request == SET_MEM_TABLE && noise.below(4) > 0 {
        list = vec![1, PHYSICAL, BYTES, USER, 0];
        list[1 + noise.below(4)] = few(noise);
    }
    let mut payload = words(&list);
    if noise.below(8) == 0 {
        payload.push(1);
    }
    let n = [0, 0, 1, 1, 1, 2, 8, 9, 60][noise.below(9)];
    let fds: Vec<RawFd> = (0..n).map(|_| fds[noise.below(fds.len())]).collect();
    frontend.send(request, &payload, &fds)
}

/// What one hostile front-end does on one connection, until it leaves or is thrown out.
pub(super) fn attack(socket: UnixStream, noise: &mut Noise, kind: usize) -> std::io::Result<()> {
    socket.set_read_timeout(Some(WAIT_TIME_MAX))?;
    socket.set_write_timeout(Some(Duration::from_secs(2)))?;
    let packed = noise.below(2) == 1;
    let mut guest = Guest::new(socket, packed);
    let null = std::fs::File::open("/dev/null")?;
    let event = eventfd();
    match kind {
        0 => {
            let n = 1 + noise.below(300);
            guest.frontend.0.write_all(&noise.bytes(n))?;
        }
        1 => {
            let fds = [guest.file.as_raw_fd(), event.as_raw_fd(), null.as_raw_fd()];
            for _ in 0..40 {
                any_message(&guest.frontend, noise, &fds)?;
            }
        }
        // As a guest should, and then anything.
        2 => {
            guest.connect()?;
            guest.step();
            let fds = [guest.file.as_raw_fd(), event.as_raw_fd(), null.as_raw_fd()];
            for _ in 0..40 {
                any_message(&guest.frontend, noise, &fds)?;
            }
        }
        // Rings full of noise.
        3 => {
            guest.connect()?;
            guest.scribble(noise, 0, 0x2_0000);
            std::thread::sleep(Duration::from_millis(2));
            guest.frontend.settle()?;
        }
        // The memory goes away under traffic.
        4 => {
            guest.connect()?;
            guest.step();
            guest.file.set_len(4096 * noise.below(64) as u64)?;
            std::thread::sleep(Duration::from_millis(3));
            guest.frontend.settle()?;
        }
        5 => {
            let huge = words(&[1 << 40, 0, u64::MAX]);
            guest.frontend.send(GET_INFLIGHT_FD, &huge[..20 + 4 * noise.below(2)], &[])?;
            guest.frontend.reply()?;
        }
        // Full and blocking call descriptors.
        6 => {
            guest.connect()?;
            fill(&event, u64::MAX - 1);
            for ring in 0..2 {
                guest.frontend.send(SET_VRING_CALL, &words(&[ring]), &[event.as_raw_fd()])?;
            }
            guest.frontend.settle()?;
            std::thread::sleep(Duration::from_millis(2));
            let (_reader, writer) = std::io::pipe()?;
            guest.frontend.send(SET_VRING_CALL, &words(&[0]), &[writer.as_raw_fd()])?;
            guest.frontend.settle()?;
        }
        // Leaves in the middle of a message, with descriptors.
        7 => {
            guest.connect()?;
            let mut bytes = header(SET_MEM_TABLE, 1, 40);
            bytes.extend_from_slice(&words(&[1]));
            guest
                .frontend
                .raw(&bytes[..1 + noise.below(bytes.len())], &[guest.file.as_raw_fd()])?;
        }
        // A file that is shorter than said from the beginning.
        8 => {
            guest.file.set_len(BYTES - 4096)?;
            guest.table()?;
            guest.frontend.settle()?;
        }
        // Starts again and again.
        9 => {
            guest.connect()?;
            for _ in 0..50 {
                guest.table()?;
                guest.frontend.send(GET_VRING_BASE, &pair(noise.below(2) as u32, 0), &[])?;
                guest.frontend.reply()?;
                guest.ring(noise.below(2) as u32)?;
            }
            guest.frontend.settle()?;
        }
        _ => {
            let all: Vec<RawFd> = vec![null.as_raw_fd(); 60];
            guest.frontend.send(SET_MEM_TABLE, &words(&[8]), &all)?;
            guest.frontend.settle()?;
        }
    }
    Ok(())
}

pub(super) const KINDS: usize = 11;

/// What a front-end that does nothing wrong does on one connection.
pub(super) fn behave(socket: UnixStream, packed: bool) -> std::io::Result<()> {
    let mut guest = Guest::new(socket, packed);
    guest.connect()?;
    guest.step();
    guest.frontend.settle()
}

/// Violations that these front-ends are known to commit.
pub(super) const EXPECTED: [Violation; 7] = [
    Violation::Version,
    Violation::Request,
    Violation::Descriptors,
    Violation::ShortFile,
    Violation::LostMemory,
    Violation::Inflight,
    Violation::Call,
];
