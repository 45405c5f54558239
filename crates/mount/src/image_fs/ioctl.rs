//! What the mount says of itself, for those who ask: see `stats`.

use ferrofs_fuse::{Errno, Notifier, Reply};

use super::ImageFs;
use crate::stats::{StatsCollector, is_stats_ioctl, respond};

impl ImageFs {
    /// Answers an ioctl, on whatever directory or file. All but questions for numbers are unknown here.
    pub(super) fn ioctl(&self, (command, input): (u32, &[u8]), room: u32, reply: Reply<'_>) {
        if !is_stats_ioctl(command) {
            return reply.error(Errno::NOTTY);
        }
        let collector = StatsCollector {
            image: &self.image,
            nodes: &self.nodes,
            settings: &self.settings,
            metrics: &self.metrics,
            init_parameters: self.init_parameters,
            session: self.notifier.get().map(Notifier::stats),
        };
        match respond(input, &collector) {
            Ok(page) => {
                let room = usize::try_from(room).unwrap_or(usize::MAX).min(page.len());
                reply.ioctl(0, page.get(..room).unwrap_or_default());
            }
            Err(errno) => reply.error(errno),
        }
    }
}
