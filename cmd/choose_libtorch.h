#pragma once
// Which LibTorch a command takes that needs one: a package is used where its build's folder is not.

namespace tutti {

/// Lets the program that this process becomes load LibTorch from the folder in LIBTORCH, or else from that of the
/// build. Throws UsageError where there is none, and for another version than the build's, whose C++ interfaces differ.
void choose_libtorch();

}  // namespace tutti
