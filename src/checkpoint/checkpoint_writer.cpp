#include "tutti/detail/checkpoint/checkpoint_writer.h"

#include <exception>
#include <future>
#include <string>
#include <thread>
#include <utility>

#include "checkpoint/agreement.h"
#include "checkpoint/file.h"
#include "checkpoint/prune.h"
#include "checkpoint/tied_tensors.h"
#include "checkpoint/write_checkpoint.h"
#include "comm/os/exit_guard.h"
#include "device/devices.h"
#include "tutti/core/error.h"
#include "tutti/core/logging.h"
#include "tutti/detail/core/call_site_scope.h"

namespace tutti {
namespace {

/// A copy in CPU memory of what this rank writes, which is complete when `arrivals` have been reached.
struct StartedCopy {
  CheckpointContent content;
  std::vector<devices::StreamEvent> arrivals{};

  StartedCopy(const CheckpointContent& original, int rank)
      : content{.step = original.step, .shared = {}, .per_rank = {}, .metric = original.metric, .run = original.run} {
    for (const auto& [name, part] : original.shared) {
      // All ranks check the names; rank 0 alone writes the parts.
      content.shared.emplace(name, rank == 0 ? checkpoint::start_copy_keeping_ties(part, arrivals) : StateDict());
    }
    content.per_rank = checkpoint::start_copy_keeping_ties(original.per_rank, arrivals);
  }
};

void write_and_prune(const std::filesystem::path& folder, const CheckpointContent& content,
                     const RetentionOptions& retention, const Communicator& communicator,
                     const checkpoint::FileSystem& files, std::shared_ptr<checkpoint::Reservation> reserved) {
  checkpoint::write_checkpoint(folder, content, communicator, files, std::move(reserved));
  // All ranks throw, because the other ranks would wait in the next save for a rank 0 that threw alone.
  checkpoint::on_all_ranks(communicator, "checkpoint: retention", [&]() -> std::string {
    if (communicator.rank() != 0) return {};
    try {
      const CheckpointFolder parent(checkpoint::normalized(folder).parent_path());
      checkpoint::prune(parent, retention, content.run, files);
    } catch (const CheckpointError& error) {
      throw CheckpointError(folder.string() +
                            " is written, but older checkpoints could not be removed: " + error.what());
    }
    return {};
  });
}

}  // namespace

/// One save on its own thread, which waits for begin().
class CheckpointWriter::Job {
 public:
  Job(std::filesystem::path folder, StartedCopy copy, const RetentionOptions& retention, Communicator communicator,
      const checkpoint::FileSystem& files, std::shared_ptr<checkpoint::Reservation> reserved)
      : thread_([exit_guard = comm::ExitGuard(), this, folder = std::move(folder), copy = std::move(copy), retention,
                 communicator = std::move(communicator), &files, reserved = std::move(reserved),
                 where = CallSiteScope::current(), device = devices::CurrentDevice(),
                 begun = begun_.get_future()]() mutable {
          const CallSiteScope here(where);
          try {
            begun.get();  // throws if the job ends before begin()
            checkpoint::on_all_ranks(communicator, "checkpoint: arrival of the copy", [&] {
              device.make_current();
              for (const devices::StreamEvent& arrival : copy.arrivals) arrival.wait();
              return std::string();
            });
            write_and_prune(folder, copy.content, retention, communicator, files, std::move(reserved));
          } catch (...) {
            error_ = std::current_exception();
          }
        }) {}

  /// Call once.
  void begin() { begun_.set_value(); }
  /// Joins the thread and returns its exception, if any.
  std::exception_ptr end() {
    begun_ = {};
    if (thread_.joinable()) thread_.join();
    return std::exchange(error_, nullptr);
  }
  ~Job() { end(); }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

 private:
  std::promise<void> begun_;
  std::exception_ptr error_;  // declared before the thread that writes it
  std::thread thread_;
};

CheckpointWriter::CheckpointWriter(Communicator communicator, const checkpoint::FileSystem* files)
    : communicator_(std::move(communicator)), files_(files != nullptr ? files : &checkpoint::FileSystem::system()) {}

CheckpointWriter::~CheckpointWriter() {
  try {
    wait();
  } catch (const std::exception& error) {
    try {
      Logger(communicator_.rank()).error(std::string("the last checkpoint was not written: ") + error.what());
    } catch (const std::exception&) {
      // A destructor cannot report an error.
    }
  }
}

void CheckpointWriter::start(const std::filesystem::path& folder, const CheckpointContent& content,
                             const RetentionOptions& retention, std::shared_ptr<checkpoint::Reservation> reserved) {
  wait();
  removable({}, retention);  // throws for invalid options
  // All ranks throw, because the other ranks would wait for a rank that has no memory for the copy, or no thread.
  std::unique_ptr<Job> job;
  checkpoint::on_all_ranks(communicator_, "checkpoint: copy", [&] {
    job = std::make_unique<Job>(folder, StartedCopy(content, communicator_.rank()), retention, communicator_, *files_,
                                std::move(reserved));
    return std::string();
  });
  job->begin();
  job_ = std::move(job);
}

void CheckpointWriter::wait() {
  if (!job_) return;
  const auto job = std::exchange(job_, nullptr);
  if (const auto error = job->end()) std::rethrow_exception(error);
}

}  // namespace tutti
