#include "comm/rendezvous/job_connection.h"

#include <unistd.h>

#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "core/in_this_process.h"

namespace tutti::comm {
namespace {

// Coordinators whose rank has left and which other ranks still use. At the end of the process their destructors wait.
// The object itself is not destroyed: a thread may release the last connection while the process ends.
class LingeringServers {
 public:
  void add(std::unique_ptr<coordinator::Server> server) {
    const std::lock_guard lock(mutex_);
    if (!is_exiting_) std::erase_if(servers_, [](const auto& earlier) { return earlier->has_finished(); });
    servers_.push_back(std::move(server));
  }

  void wait_at_exit() {
    std::vector<std::unique_ptr<coordinator::Server>> waiting;
    const std::lock_guard lock(mutex_);
    is_exiting_ = true;
    waiting.swap(servers_);
  }

  static LingeringServers& of_process() {
    struct Exit {
      LingeringServers& servers = *new LingeringServers;
      ~Exit() { servers.wait_at_exit(); }
    };
    static Exit exit;
    return exit.servers;
  }

 private:
  std::mutex mutex_;
  bool is_exiting_ = false;
  std::vector<std::unique_ptr<coordinator::Server>> servers_;
};

struct ProcessConnection {
  std::mutex mutex;  // ranks may be threads of one process, so one rank does not wait for another one here
  std::shared_ptr<JobConnection> connection;
};

std::shared_ptr<ProcessConnection> entry_called(const std::string& name) {
  LingeringServers::of_process();  // outlives the connections
  static std::mutex mutex;
  // A forked child has copies of its parent's entries, whose connections no thread serves.
  static std::map<std::pair<pid_t, std::string>, std::shared_ptr<ProcessConnection>> entries;
  const std::lock_guard lock(mutex);
  auto& entry = entries[{::getpid(), name}];
  if (!entry) entry = std::make_shared<ProcessConnection>();
  return entry;
}

}  // namespace

JobConnection::JobConnection(std::unique_ptr<coordinator::Server> server, const coordinator::ClientOptions& options,
                             int owner)
    : events_(std::make_shared<JobEvents>(owner)),
      server_(std::move(server)),
      client_(make_shared_in_this_process<coordinator::Client>(options, events_->handlers())) {
  LingeringServers::of_process();  // outlives the threads that may release this connection
}

// This rank may run the coordinator of the next job at the same address, and the other ranks may connect to it at once.
JobConnection::~JobConnection() {
  if (server_) server_->close_when_finished();
  client_.reset();
  if (server_) LingeringServers::of_process().add(std::move(server_));
}

std::shared_ptr<JobConnection> process_connection(const std::string& name,
                                                  const std::function<std::shared_ptr<JobConnection>()>& make) {
  const auto entry = entry_called(name);
  const std::lock_guard lock(entry->mutex);
  if (entry->connection && !entry->connection->events()->has_failed()) return entry->connection;
  entry->connection.reset();
  entry->connection = make();
  return entry->connection;
}

}  // namespace tutti::comm
