#pragma once
// This rank's connection to the job's coordinator, and the coordinator itself where this rank runs it.
#include <functional>
#include <memory>
#include <string>

#include "comm/rendezvous/job_events.h"
#include "coordinator/client.h"
#include "coordinator/server.h"

namespace tutti::comm {

/// Thread safe. The destructor leaves the job. A coordinator that this rank runs stays until the other ranks have left,
/// or the process exits.
class JobConnection {
 public:
  /// `server` is null on ranks that do not run the coordinator. `owner` is the rank that does; -1 for a launcher.
  /// Throws what coordinator::Client throws.
  JobConnection(std::unique_ptr<coordinator::Server> server, const coordinator::ClientOptions& options, int owner);

  ~JobConnection();
  JobConnection(const JobConnection&) = delete;
  JobConnection& operator=(const JobConnection&) = delete;

  const std::shared_ptr<coordinator::Client>& client() const { return client_; }
  const std::shared_ptr<JobEvents>& events() const { return events_; }

 private:
  const std::shared_ptr<JobEvents> events_;
  std::unique_ptr<coordinator::Server> server_;
  std::shared_ptr<coordinator::Client> client_;
};

/// The connection of this process called `name`, which `make` makes if there is none, or if the job has failed since.
/// It lasts until the process exits, so that a process that connects several times joins its job once.
std::shared_ptr<JobConnection> process_connection(const std::string& name,
                                                  const std::function<std::shared_ptr<JobConnection>()>& make);

}  // namespace tutti::comm
