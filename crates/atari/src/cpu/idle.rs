//! Idle time is counted instead of emulated: loops that wait for the timer, and a processor that
//! has stopped.

use super::core::Core;
use crate::bus::Bus;
use crate::riot::Poll;

/// Before an instruction: if it loads the timer, and a branch behind it goes back to it until the
/// timer has come to some value, counts the turns of that loop that are sure to continue. At least
/// one turn is left to run, so that registers and flags come out right.
pub(super) fn skip(core: &mut Core, bus: &Bus<'_>) {
    let byte = |offset: u16| {
        let address = core.pc.wrapping_add(offset);
        let inside = address & 0x1000 != 0 && address & 0xFFF >= offset;
        let index = bus.machine.cartridge.plain_index(address);
        index.filter(|_| inside).map(|index| bus.rom.byte(index))
    };
    let loads = byte(0).is_some_and(|opcode| matches!(opcode, 0xAC..=0xAE));
    if !loads {
        return;
    }
    let (Some(low), Some(high)) = (byte(1), byte(2)) else {
        return;
    };
    if u16::from_le_bytes([low, high]) & 0x1285 != 0x0284 {
        return;
    }
    let poll = match (byte(3), byte(4)) {
        (Some(0xD0), Some(0xFB)) => Poll::UntilZero,
        (Some(0x10), Some(0xFB)) => Poll::UntilNegative,
        _ => return,
    };
    let after = core.pc.wrapping_add(5);
    let turn = if (after ^ core.pc) & 0xFF00 == 0 {
        7
    } else {
        8
    };
    let until = bus.machine.riot.waits_until(poll);
    let first_read = core.cycle + 4;
    if until <= first_read {
        return;
    }
    let turns = ((until - first_read + turn - 1) / turn)
        .min(i64::from(core.left / 2) - 1)
        .max(0);
    core.cycle += turns * turn;
    core.left -= 2 * turns as u32;
}

/// When the processor has stopped for good: counts its turns, which do nothing but fetch one
/// opcode again and again.
pub(super) fn rest(core: &mut Core, bus: &Bus<'_>) {
    let only_reads = if core.pc & 0x1000 != 0 {
        bus.machine.cartridge.plain_index(core.pc).is_some()
    } else {
        core.pc & 0x280 == 0x80
    };
    if core.jammed && only_reads {
        core.cycle += 2 * i64::from(core.left);
        core.left = 0;
    }
}
