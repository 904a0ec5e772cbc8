#pragma once
// The text of an owner file: which process created it. The only I/O is reading /proc and owner files.
#include <filesystem>
#include <string>

namespace tutti::checkpoint {

/// The identity of the calling process, as JSON.
std::string owner_text();
/// The text of the owner file at `path`; empty if it cannot be read.
std::string owner_text_in(const std::filesystem::path& path);

/// True only if it is certain that the process that wrote `text` has exited: it ran in this boot of the system and in
/// this PID namespace, and does not run any more.
bool owner_has_exited(const std::string& text);

/// The process for a message: "process 4711 on node7".
std::string owner_name(const std::string& text);

}  // namespace tutti::checkpoint
