#include "coordinator/client.h"

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

void Client::set(const std::string& key, std::string_view value) {
  check_value(value);
  call_with_key(requests_, "set", MessageType::set, key, BodyWriter().text(key).text(value));
}

std::int64_t Client::add(const std::string& key, std::int64_t increment, std::optional<Milliseconds> timeout) {
  const auto reply =
      call_with_key(requests_, "add", MessageType::add, key, BodyWriter().text(key).put(increment), timeout);
  return BodyReader(reply).get<std::int64_t>();
}

std::string Client::compare_set(const std::string& key, const std::string& expected, const std::string& desired,
                                std::optional<Milliseconds> timeout) {
  check_value(desired);
  const auto reply = call_with_key(requests_, "compare_set", MessageType::compare_set, key,
                                   BodyWriter().text(key).text(expected).text(desired), timeout);
  return BodyReader(reply).text();
}

std::vector<std::string> Client::get(const std::vector<std::string>& keys, Milliseconds timeout) {
  return BodyReader(call_with_keys(requests_, "get", MessageType::get, keys, timeout)).texts();
}

void Client::wait(const std::vector<std::string>& keys, Milliseconds timeout) {
  call_with_keys(requests_, "wait", MessageType::wait, keys, timeout);
}

bool Client::check(const std::vector<std::string>& keys, std::optional<Milliseconds> timeout) {
  const auto reply = call_with_keys(requests_, "check", MessageType::check, keys, timeout);
  return BodyReader(reply).get<std::uint8_t>() != 0;
}

bool Client::erase(const std::string& key) {
  const auto reply = call_with_key(requests_, "erase", MessageType::erase, key, BodyWriter().text(key));
  return BodyReader(reply).get<std::uint8_t>() != 0;
}

std::int64_t Client::num_keys() {
  return BodyReader(requests_.call("num_keys", MessageType::num_keys, {})).get<std::int64_t>();
}

std::vector<std::string> Client::all_gather(const std::string& topic, const std::vector<int>& members,
                                            const std::string& value, Milliseconds timeout, Milliseconds longer) {
  check_value(value);
  const auto reply = call_with_key(requests_, "all_gather", MessageType::all_gather, topic,
                                   BodyWriter().text(topic).ranks(members).text(value), timeout, longer);
  return BodyReader(reply).texts();
}

void Client::report(const std::string& group, const std::string& text) noexcept {
  requests_.post(MessageType::report, BodyWriter().text(group).text(text));
}

void Client::blocked(const std::string& wait_state, bool agrees, Milliseconds blocked_for) noexcept {
  requests_.state_blocked(BodyWriter()
                              .put(static_cast<std::uint8_t>(agrees))
                              .put(static_cast<std::uint32_t>(blocked_for.count()))
                              .text(wait_state)
                              .frame(MessageType::blocked));
}

void Client::unblocked() noexcept {
  requests_.state_blocked(BodyWriter().frame(MessageType::unblocked));
}

}  // namespace tutti::coordinator
