#include "coordinator/client.h"

#include <utility>

#include "coordinator/client_connection.h"
#include "core/in_this_process.h"
#include "tutti/core/error.h"

namespace tutti::coordinator {
namespace {

std::string quoted(const std::vector<std::string>& keys) {
  return keys.empty() ? "" : " '" + keys.front() + (keys.size() > 1 ? "' and others" : "'");
}

void check_size(const std::string& what, std::string_view bytes, std::size_t limit) {
  if (bytes.size() > limit) throw UsageError(what + " has more than " + std::to_string(limit) + " bytes");
}

void check_key(std::string_view key) {
  check_size("a key", key, max_key_bytes);
}

void check_value(std::string_view value) {
  check_size("a value", value, max_value_bytes);
}

std::string call_with_keys(ClientRequests& requests, const std::string& name, MessageType type,
                           const std::vector<std::string>& keys, std::optional<Milliseconds> timeout) {
  for (const auto& key : keys) check_key(key);
  return requests.call(name + quoted(keys), type, BodyWriter().texts(keys), timeout);
}

std::string call_with_key(ClientRequests& requests, const std::string& name, MessageType type, const std::string& key,
                          const BodyWriter& body, std::optional<Milliseconds> timeout = std::nullopt,
                          Milliseconds longer = Milliseconds(0)) {
  check_key(key);
  return requests.call(name + " '" + key + "'", type, body, timeout, longer);
}

}  // namespace

Client::Client(const ClientOptions& options, ClientEvents events)
    : connection_(make_shared_in_this_process<Connection>(options, std::move(events))) {}

void Client::set(const std::string& key, std::string_view value) {
  check_value(value);
  call_with_key(connection_->requests(), "set", MessageType::set, key, BodyWriter().text(key).text(value));
}

std::int64_t Client::add(const std::string& key, std::int64_t increment,
                         std::optional<std::chrono::milliseconds> timeout) {
  const auto reply = call_with_key(connection_->requests(), "add", MessageType::add, key,
                                   BodyWriter().text(key).put(increment), timeout);
  return BodyReader(reply).get<std::int64_t>();
}

std::string Client::compare_set(const std::string& key, const std::string& expected, const std::string& desired,
                                std::optional<std::chrono::milliseconds> timeout) {
  check_value(desired);
  const auto reply = call_with_key(connection_->requests(), "compare_set", MessageType::compare_set, key,
                                   BodyWriter().text(key).text(expected).text(desired), timeout);
  return BodyReader(reply).text();
}

std::vector<std::string> Client::get(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) {
  return BodyReader(call_with_keys(connection_->requests(), "get", MessageType::get, keys, timeout)).texts();
}

void Client::wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) {
  call_with_keys(connection_->requests(), "wait", MessageType::wait, keys, timeout);
}

bool Client::check(const std::vector<std::string>& keys, std::optional<std::chrono::milliseconds> timeout) {
  const auto reply = call_with_keys(connection_->requests(), "check", MessageType::check, keys, timeout);
  return BodyReader(reply).get<std::uint8_t>() != 0;
}

bool Client::erase(const std::string& key) {
  const auto reply = call_with_key(connection_->requests(), "erase", MessageType::erase, key, BodyWriter().text(key));
  return BodyReader(reply).get<std::uint8_t>() != 0;
}

std::int64_t Client::num_keys() {
  return BodyReader(connection_->requests().call("num_keys", MessageType::num_keys, {})).get<std::int64_t>();
}

std::vector<std::string> Client::all_gather(const std::string& topic, const std::vector<int>& members,
                                            const std::string& value, std::chrono::milliseconds timeout,
                                            std::chrono::milliseconds longer) {
  check_value(value);
  const auto reply = call_with_key(connection_->requests(), "all_gather", MessageType::all_gather, topic,
                                   BodyWriter().text(topic).ranks(members).text(value), timeout, longer);
  return BodyReader(reply).texts();
}

void Client::report(const std::string& group, const std::string& text) noexcept {
  connection_->requests().post(MessageType::report, BodyWriter().text(group).text(text));
}

void Client::blocked(const std::string& wait_state, bool agrees, std::chrono::milliseconds blocked_for) noexcept {
  connection_->requests().state_blocked(BodyWriter()
                                            .put(static_cast<std::uint8_t>(agrees))
                                            .put(static_cast<std::uint32_t>(blocked_for.count()))
                                            .text(wait_state)
                                            .frame(MessageType::blocked));
}

void Client::unblocked() noexcept {
  connection_->requests().state_blocked(BodyWriter().frame(MessageType::unblocked));
}

}  // namespace tutti::coordinator
