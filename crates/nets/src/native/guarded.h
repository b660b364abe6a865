// Errors as codes and messages, since C++ exceptions must not reach Rust. Each file that includes this
// has a message of its own.
#pragma once

#include <exception>
#include <string>

namespace {
thread_local std::string message;

// 0, or 1 after leaving a message.
template <typename Work>
int guarded(Work work) {
  try {
    work();
    return 0;
  } catch (const std::exception& error) {
    message = error.what();
    return 1;
  }
}
}  // namespace
