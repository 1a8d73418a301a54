"""A client as Flower's quickstart has it; it knows nothing of feddraw."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from task import Net, accuracy, load, train

app = ClientApp()


@app.train()
def fit(message: Message, context: Context) -> Message:
    model = Net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    features, labels = load(context.node_config["partition-id"])
    loss = train(model, features, labels, lr=message.content["config"]["lr"])
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(labels)})
    return Message(
        RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}),
        reply_to=message,
    )


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    model = Net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    features, labels = load(context.node_config["partition-id"])
    metrics = MetricRecord(
        {"accuracy": accuracy(model, features, labels), "num-examples": len(labels)}
    )
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
