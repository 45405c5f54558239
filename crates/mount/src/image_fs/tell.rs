//! What the mount says of itself, for those who ask: see `stats`.

use ferrofs_fuse::{Errno, Notifier, Reply};

use super::ImageFs;
use crate::stats::{Gatherer, answer, is_question};

impl ImageFs {
    /// Answers an ioctl, on whatever directory or file. All but questions for numbers are unknown here.
    pub(super) fn tell_numbers(&self, (command, input): (u32, &[u8]), room: u32, reply: Reply<'_>) {
        if !is_question(command) {
            return reply.error(Errno::NOTTY);
        }
        let gatherer = Gatherer {
            image: &self.image,
            nodes: &self.nodes,
            settings: &self.settings,
            meters: &self.meters,
            terms: self.terms,
            session: self.notifier.get().map(Notifier::counts),
        };
        match answer(input, &gatherer) {
            Ok(page) => {
                let room = usize::try_from(room).unwrap_or(usize::MAX).min(page.len());
                reply.ioctl(0, page.get(..room).unwrap_or_default());
            }
            Err(errno) => reply.error(errno),
        }
    }
}
