//! Runs the real `ferrofs` binary: the function of each verb, past defects, and the extraction of
//! every test image, which is compared with its manifest.

#[cfg(test)]
mod android;
#[cfg(test)]
mod bombs;
#[cfg(test)]
mod build;
#[cfg(test)]
mod compatibility;
#[cfg(test)]
mod container;
#[cfg(test)]
mod container_image;
#[cfg(test)]
#[path = "../../../image/tests/image/crafted.rs"]
mod crafted;
#[cfg(test)]
mod defects;
#[cfg(test)]
mod demo;
#[cfg(test)]
mod drop_in;
#[cfg(test)]
mod erofs_utils;
#[cfg(test)]
mod failure_points;
#[cfg(test)]
mod feature;
#[cfg(test)]
mod hung_source;
#[cfg(test)]
mod images;
#[cfg(test)]
mod incremental;
#[cfg(test)]
mod keep;
#[cfg(test)]
mod keep_replace;
#[cfg(test)]
mod keep_service;
#[cfg(test)]
mod layers;
#[cfg(test)]
mod list;
#[cfg(test)]
mod manifest;
#[cfg(test)]
mod mount;
#[cfg(test)]
mod mount_life;
mod mount_stats;
#[cfg(test)]
mod mounted;
#[cfg(test)]
mod names;
#[cfg(test)]
mod publish;
#[cfg(test)]
mod regression;
#[cfg(test)]
mod signals;
#[cfg(test)]
mod spool;
#[cfg(test)]
mod standard_output;
#[cfg(test)]
mod support;
#[cfg(test)]
mod tar;
