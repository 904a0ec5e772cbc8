#include "core/random.h"

#include <sys/random.h>

#include <cerrno>
#include <system_error>

namespace tutti {

void fill_random(std::span<std::byte> bytes) {
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    throw std::system_error(errno, std::generic_category(), "getrandom");
  }
}

Nonce random_nonce() {
  Nonce nonce{};
  fill_random(std::as_writable_bytes(std::span(nonce)));
  return nonce;
}

}  // namespace tutti
