#pragma once
// The coordinator's key-value entries as a c10d::Store, for the parts of LibTorch that need one.
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "coordinator/client.h"

namespace tutti::comm {

/// Thread safe: a request that waits blocks no other one. Copies share the client. c10d's extended functions are those
/// of the base class, which call these.
class CoordinatorStore final : public c10d::Store {
 public:
  CoordinatorStore(std::shared_ptr<coordinator::Client> client, std::chrono::milliseconds timeout)
      : Store(timeout), client_(std::move(client)) {}

  c10::intrusive_ptr<c10d::Store> clone() override { return c10::make_intrusive<CoordinatorStore>(client_, timeout_); }

  void set(const std::string& key, const std::vector<std::uint8_t>& value) override;
  std::vector<std::uint8_t> compareSet(const std::string& key, const std::vector<std::uint8_t>& expected,
                                       const std::vector<std::uint8_t>& desired) override;
  std::vector<std::uint8_t> get(const std::string& key) override;
  std::int64_t add(const std::string& key, std::int64_t value) override { return client_->add(key, value); }
  bool deleteKey(const std::string& key) override { return client_->erase(key); }
  bool check(const std::vector<std::string>& keys) override { return client_->check(keys); }
  std::int64_t getNumKeys() override { return client_->num_keys(); }
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override;

 private:
  std::shared_ptr<coordinator::Client> client_;
};

}  // namespace tutti::comm
