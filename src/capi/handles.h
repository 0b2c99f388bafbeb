// What stands behind the opaque pointers of the C API: numbers that are never used again, so that a freed,
// foreign or made-up handle is an error. An object lives as long as its handle or a call that uses it.
#pragma once

#include <memory>

namespace hysparse::capi {

enum class HandleKind { model, tokenizer, generation, engine, answer };

// After fork() objects with threads or locks of the parent are dead in the child: find_handle() refuses them,
// free_handle() only forgets them.
enum class AfterFork { dead, usable };

void* add_handle(HandleKind kind, std::shared_ptr<void> object, AfterFork after_fork);
std::shared_ptr<void> find_handle(HandleKind kind, const void* handle);  // Error(input) where it is none
void free_handle(HandleKind kind, void* handle);                         // NULL: nothing

}  // namespace hysparse::capi
