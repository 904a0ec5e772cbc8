#pragma once
// Ranks as threads whose gradient sums go through a c10d backend, as on a device. This tests the code of the backend
// nccl without an accelerator; tests/device has the tests on the simulated one.
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/algorithms/p2p_backend.h"
#include "comm/backend/topology.h"
#include "comm/device/backend.h"
#include "comm/make_communicator.h"
#include "support/tcp_transports.h"
#include "tutti/comm/thread_ranks.h"

namespace tutti::test {

/// The requests to one rank's backends. Read the log only when nothing is in flight.
struct BackendLog {
  std::vector<std::string> groups;
  int sums = 0;
  int aborts = 0;
};

class SumWork final : public c10d::Work {
 public:
  explicit SumWork(tutti::Work sum) : sum_(std::move(sum)) {}
  bool wait(std::chrono::milliseconds = kNoTimeout) override {
    sum_.wait();
    return true;
  }

 private:
  tutti::Work sum_;
};

class SumBackend final : public c10d::Backend {
 public:
  SumBackend(Communicator among, std::shared_ptr<BackendLog> log)
      : c10d::Backend(among.rank(), among.size()), among_(std::move(among)), log_(std::move(log)) {}
  const std::string getBackendName() const override { return "sums"; }
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& = {}) override {
    ++log_->sums;
    return c10::make_intrusive<SumWork>(among_.all_reduce(tensors.at(0)));
  }
  void abort() override { ++log_->aborts; }

 private:
  Communicator among_;
  std::shared_ptr<BackendLog> log_;
};

/// Runs `body` once per rank, with a communicator whose device is the CPU.
inline void run_device_ranks(int size, const std::function<void(const Communicator&, const BackendLog&)>& body) {
  const auto transports = make_tcp_transports(size);
  const CommunicatorOptions options{.timeout = std::chrono::seconds(30)};
  run_thread_ranks(
      size,
      [&](const Communicator& among) {
        const auto log = std::make_shared<BackendLog>();
        auto host = std::make_shared<comm::P2pBackend>(
            transports[static_cast<std::size_t>(among.rank())],
            comm::make_topology(std::vector<int>(static_cast<std::size_t>(size)), among.rank()));
        C10dBackendFactory factory{
            .name = "sums", .device = at::kCPU, .make = [&among, log](const auto& group, int, int, c10::Device) {
              log->groups.push_back(group);
              return c10::intrusive_ptr<c10d::Backend>(c10::make_intrusive<SumBackend>(among.duplicate(group), log));
            }};
        auto device_backend = comm::make_device_backend(std::move(host), std::move(factory), "job");
        body(make_communicator(std::move(device_backend), options, "job"), *log);
      },
      options);
}

}  // namespace tutti::test
