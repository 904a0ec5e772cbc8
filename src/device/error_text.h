#pragma once
// The text of an exception for a message.
#include <c10/util/Exception.h>

#include <exception>
#include <string>

namespace tutti {

/// what(), without the backtrace that LibTorch adds to its own.
inline std::string error_text(const std::exception& error) {
  const auto* from_libtorch = dynamic_cast<const c10::Error*>(&error);
  return from_libtorch != nullptr ? from_libtorch->what_without_backtrace() : error.what();
}

}  // namespace tutti
