#pragma once
// The way of a rank's output: bytes -> lines -> the launcher's own output with a prefix, a log file, and the last lines
// for the report. Nothing here blocks while the launcher has ranks to watch.
#include <cstddef>
#include <deque>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/file_descriptor.h"

namespace tutti {

/// Cuts a stream of bytes into lines.
class LineSplitter {
 public:
  /// The lines that are complete with these bytes, without their line ends. A line longer than max_line is cut.
  std::vector<std::string> feed(std::string_view bytes);
  /// What is left behind the last line end.
  std::optional<std::string> finish();

  static constexpr std::size_t max_line = std::size_t{64} * 1024;

 private:
  std::string partial_;
};

/// The launcher's own stdout or stderr. Its reader may be slow (a pager), so bytes wait here until it is ready.
class Sink {
 public:
  explicit Sink(int fd) : fd_(fd) {}

  int fd() const { return fd_; }
  void append(std::string_view bytes);
  bool has_pending() const { return !pending_.empty(); }
  /// True when ranks should not be read until the reader has caught up.
  bool is_full() const { return pending_.size() > capacity; }
  /// Writes what can be written without blocking. Call when poll says that fd() is writable.
  void write_ready();
  /// Writes all, and waits for the reader where needed.
  void flush();

 private:
  static constexpr std::size_t capacity = std::size_t{256} * 1024;

  bool write_up_to(std::size_t count);

  int fd_;
  bool broken_ = false;
  std::string pending_;
};

/// What one rank prints.
class RankOutput {
 public:
  static constexpr std::size_t tail_lines = 20;

  struct Stream {
    FileDescriptor pipe;  ///< non-blocking; closed when the writers are gone
    Sink* sink = nullptr;
    LineSplitter lines;
  };

  /// Opens LOG_DIR/rank_R.log where a folder is given. A `headline` follows what an earlier attempt left there; without
  /// one the file begins empty. Throws UsageError when it cannot be written.
  RankOutput(int rank, const std::optional<std::filesystem::path>& log_dir, const std::string& headline = "");

  /// Output that is not a rank's. Lines for which `takes` returns true are not shown.
  RankOutput(std::string prefix, std::function<bool(const std::string&)> takes)
      : prefix_(std::move(prefix)), takes_(std::move(takes)) {}

  void add_stream(FileDescriptor pipe, Sink& sink) { streams_.push_back({std::move(pipe), &sink, {}}); }
  std::vector<Stream>& streams() { return streams_; }
  bool is_open() const;

  /// Takes a piece of what the pipe holds; false when it holds nothing now or has ended.
  bool read_piece(Stream& stream);
  /// Takes all that the pipes hold now and shows unfinished lines.
  void finish();

  const std::deque<std::string>& tail() const { return tail_; }

 private:
  void show(Stream& stream, const std::string& line);
  void log(std::string_view bytes);

  std::string prefix_;
  std::function<bool(const std::string&)> takes_;
  std::filesystem::path log_path_;
  FileDescriptor log_;
  std::vector<Stream> streams_;
  std::deque<std::string> tail_;
};

}  // namespace tutti
