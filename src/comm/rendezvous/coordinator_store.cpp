#include "comm/rendezvous/coordinator_store.h"

#include "comm/backend/operation.h"

namespace tutti::comm {
namespace {

// c10d's kNoTimeout waits for ever.
std::chrono::milliseconds limit_of(std::chrono::milliseconds timeout) {
  return timeout == c10d::Store::kNoTimeout ? longest_timeout : timeout;
}

std::vector<std::uint8_t> as_bytes(const std::string& text) {
  return {text.begin(), text.end()};
}

std::string as_text(const std::vector<std::uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}

}  // namespace

void CoordinatorStore::set(const std::string& key, const std::vector<std::uint8_t>& value) {
  client_->set(key, as_text(value));
}

std::vector<std::uint8_t> CoordinatorStore::compareSet(const std::string& key,
                                                       const std::vector<std::uint8_t>& expected,
                                                       const std::vector<std::uint8_t>& desired) {
  return as_bytes(client_->compare_set(key, as_text(expected), as_text(desired)));
}

std::vector<std::uint8_t> CoordinatorStore::get(const std::string& key) {
  return as_bytes(client_->get({key}, limit_of(timeout_)).front());
}

void CoordinatorStore::wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) {
  client_->wait(keys, limit_of(timeout));
}

}  // namespace tutti::comm
