//! The C library from outside: C and C++ programs are compiled with its header, linked with it, and
//! run.

#[cfg(test)]
mod memory;
#[cfg(test)]
mod programs;
#[cfg(test)]
mod support;
#[cfg(test)]
mod symbols;
#[cfg(test)]
mod tar;
