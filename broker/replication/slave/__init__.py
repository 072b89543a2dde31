"""A slave's conversation with its master, over the remoting port."""
